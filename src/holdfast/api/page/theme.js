// Runs before the page is painted, so that a chosen theme does not flash.
try {
  const theme = JSON.parse(localStorage.getItem("holdfast.theme"));
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // No storage, no choice: the system's theme.
}
