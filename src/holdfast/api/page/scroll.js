// Keeps the end of the conversation in view while it grows, unless the reader has scrolled away from it.

const NEAR = 48;

export class Scroll {
  #scroller;
  #button;
  #follows = true;
  #top = 0;

  constructor(scroller, content, button) {
    this.#scroller = scroller;
    this.#button = button;
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    button.addEventListener("click", () => this.toEnd());
    // Whoever unfolds something wants to read it where it is.
    content.addEventListener("click", (event) => {
      if (event.target.closest("summary")) this.#follows = false;
    });
    const watch = new ResizeObserver(() => this.#grew());
    watch.observe(content);
    watch.observe(scroller);
  }

  toEnd() {
    this.#follows = true;
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  /** Change what lies above without moving what the reader looks at. */
  keepPlace(change) {
    const fromEnd = this.#scroller.scrollHeight - this.#scroller.scrollTop;
    change();
    this.#scroller.scrollTop = this.#scroller.scrollHeight - fromEnd;
  }

  get #isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  #scrolled() {
    // Growing text puts the end out of reach before we follow: only moving up is the reader's wish to stay.
    const top = this.#scroller.scrollTop;
    if (this.#isAtEnd) this.#follows = true;
    else if (top < this.#top) this.#follows = false;
    this.#top = top;
    this.#button.hidden = this.#isAtEnd;
  }

  #grew() {
    if (this.#follows) this.toEnd();
    this.#button.hidden = this.#isAtEnd;
  }
}
