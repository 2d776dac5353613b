// Copying text, with a word on whether it worked.

/** Make `button` copy what `read` returns. */
export function copyOnClick(button, read) {
  button.addEventListener("click", () => copy(button, read()));
}

export async function copy(button, text) {
  const worked = await toClipboard(text);
  const label = button.textContent;
  if (button.dataset.said) return;
  button.dataset.said = "yes";
  button.textContent = worked ? "Copied" : "Not allowed";
  setTimeout(() => {
    button.textContent = label;
    delete button.dataset.said;
  }, 1500);
}

async function toClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text); // plain http from another machine: no clipboard object there
  }
}

function copyBySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "unseen";
  document.body.append(area);
  area.select();
  const worked = document.execCommand("copy");
  area.remove();
  return worked;
}
