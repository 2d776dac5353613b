// The conversation on the page: what was said before, and what is being said.

import { copy } from "./clipboard.js";
import { Scroll } from "./scroll.js";
import { Turn } from "./turn.js";

const LONGEST_ANNOUNCEMENT = 1500;

export class Thread {
  #thread = document.getElementById("thread");
  #past = document.getElementById("past");
  #live = document.getElementById("live");
  #empty = document.getElementById("empty");
  #earlier = document.getElementById("earlier");
  #announcer = document.getElementById("announcer");
  #scroll = new Scroll(document.getElementById("scroller"), this.#thread, document.getElementById("latest"));

  /** `onEarlier` is called when the reader asks for what was said before the first message shown. */
  constructor({ onEarlier }) {
    this.#earlier.addEventListener("click", onEarlier);
    this.#thread.addEventListener("click", (event) => {
      const button = event.target.closest("button.copy");
      if (button) copy(button, button.closest(".code").querySelector("code").textContent);
    });
  }

  clear() {
    this.#past.replaceChildren();
    this.#live.replaceChildren();
    this.#earlier.hidden = true;
    this.#empty.hidden = true;
  }

  /** Show stored messages in place of all that is over; what still runs stays below them. */
  show(messages, more) {
    this.#past.replaceChildren(...recall(messages));
    for (const node of [...this.#live.children]) {
      if (node.matches(".over, .divider")) node.remove();
    }
    this.#earlier.hidden = !more;
    this.#empty.hidden = messages.length > 0 || this.#live.childElementCount > 0;
    this.#scroll.toEnd();
  }

  /** Show more of them, from further back, leaving the reader's eyes where they are. */
  showEarlier(messages, more) {
    this.#scroll.keepPlace(() => {
      this.#past.replaceChildren(...recall(messages));
      this.#earlier.hidden = !more;
    });
  }

  begin(question) {
    const turn = new Turn(question);
    this.#empty.hidden = true;
    this.#live.append(turn.root);
    this.#scroll.toEnd();
    return turn;
  }

  /** A line across the conversation, above `turn`: something changed here. */
  divide(turn, sentence) {
    turn.root.before(divider(sentence));
  }

  /** Say it to those who listen instead of looking. */
  announce(words) {
    this.#announcer.textContent = words.slice(0, LONGEST_ANNOUNCEMENT);
  }

  /** An empty page, with a word on why. */
  startAnew(sentence) {
    this.clear();
    this.#past.append(divider(sentence));
    this.#empty.hidden = false;
  }
}

function divider(sentence) {
  const line = document.createElement("p");
  line.className = "divider";
  line.textContent = sentence;
  return line;
}

/** Stored messages as the nodes of finished turns. */
function recall(messages) {
  const turns = [];
  for (const message of messages) {
    if (message.role === "user") turns.push(new Turn(message.text));
    else {
      if (!turns.length) turns.push(new Turn(null));
      turns.at(-1).recall(message);
    }
  }
  for (const turn of turns) turn.settle();
  return turns.map((turn) => turn.root);
}
