// A conversation that has ended: it can be read, and nothing else.

import { Locked } from "./gateway.js";
import { History } from "./history.js";

export class PastConversation {
  isUntouched = false;
  isBusy = false;
  #id;
  #page;
  #history;
  #left = new AbortController();

  constructor(id, page) {
    this.#id = id;
    this.#page = page;
    this.#history = new History(page, this.#left.signal);
  }

  get title() {
    return this.#history.session?.title ?? "";
  }

  get sessionId() {
    return this.#id;
  }

  /** Show it; one that goes on is opened where it goes on. */
  async open() {
    const { line, composer, onChange, onOpen } = this.#page;
    composer.isOpen = false;
    await this.#guard(async () => {
      const path = `/api/sessions/${encodeURIComponent(this.#id)}`;
      const stored = await line.persist(() => this.#history.fetch(path), this.#left.signal);
      if (stored.session.ended) {
        this.#history.show(stored);
        onChange();
      } else {
        onOpen(stored.session);
      }
    });
  }

  async showEarlier() {
    await this.#guard(() => this.#history.showEarlier());
  }

  async refresh() {}

  async stop() {}

  leave() {
    this.#left.abort();
  }

  async #guard(work) {
    try {
      await work();
    } catch (error) {
      if (this.#left.signal.aborted) return;
      if (error instanceof Locked) this.#page.onLocked();
      else this.#page.composer.complain(error.message);
    }
  }
}
