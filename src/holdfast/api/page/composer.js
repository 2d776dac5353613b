// The box where messages are written. What is in it stays there until the gateway has stored it.

export class Composer {
  #form = document.getElementById("composer");
  #box = document.getElementById("box");
  #send = document.getElementById("send");
  #stop = document.getElementById("stop");
  #trouble = document.getElementById("trouble");
  #ended = document.getElementById("ended");
  #keys = document.getElementById("keys");

  constructor({ onSend, onStop, onEdit }) {
    const submit = () => {
      if (!this.isSending && this.text.trim()) onSend(this.text);
    };
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      submit();
    });
    this.#box.addEventListener("keydown", (event) => {
      // On a phone's keyboard Enter is the only way to a new line; while composing (日本語) it ends the composition.
      const touch = matchMedia("(pointer: coarse)").matches;
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || touch) return;
      event.preventDefault();
      submit();
    });
    this.#box.addEventListener("input", () => {
      this.complain("");
      this.#refresh();
      onEdit(this.text);
    });
    this.#stop.addEventListener("click", onStop);
  }

  get text() {
    return this.#box.value;
  }

  set text(text) {
    this.#box.value = text;
    this.#refresh();
  }

  get isSending() {
    return this.#form.classList.contains("sending");
  }

  /** On its way: the text can be read and copied, not changed. */
  set isSending(sending) {
    this.#form.classList.toggle("sending", sending);
    this.#box.readOnly = sending;
    this.#refresh();
  }

  set canStop(running) {
    this.#stop.hidden = !running;
    this.#stop.disabled = false;
  }

  stopping() {
    this.#stop.disabled = true;
  }

  /** A conversation that has ended takes no more messages. */
  set isOpen(open) {
    this.#form.hidden = !open;
    this.#keys.hidden = !open;
    this.#ended.hidden = open;
  }

  focus() {
    // A phone's keyboard would cover what one came to read.
    if (!matchMedia("(pointer: coarse)").matches) this.#box.focus({ preventScroll: true });
  }

  /** One sentence on what is wrong; an empty one takes it back. */
  complain(sentence) {
    this.#trouble.textContent = sentence;
    this.#trouble.hidden = !sentence;
  }

  #refresh() {
    this.#send.disabled = this.isSending || !this.text.trim();
    if (CSS.supports("field-sizing", "content")) return;
    this.#box.style.height = "auto";
    this.#box.style.height = `${this.#box.scrollHeight}px`;
  }
}
