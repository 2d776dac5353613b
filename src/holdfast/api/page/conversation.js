// One open conversation: what is stored, what is being answered, what is on its way.

import { Away, Locked, newId, Refused } from "./gateway.js";
import { History, lastExchange } from "./history.js";
import { unlessAborted } from "./line.js";

// A browser opens six connections to one server, and each message under way holds one of them.
const MOST_UNDER_WAY = 3;
const ENDS_CONVERSATION = new Set(["new", "reset"]);

export class Conversation {
  #page;
  #path;
  #history;
  #left = new AbortController();
  #unsent = null; // lets go of the message that the gateway has not stored yet
  #live = new Map(); // turns that are not over, with their messages' ids
  #shown = ""; // the last exchange on the page
  #loaded = Promise.resolve(); // what is sent waits for what is stored: else one might be shown twice, or not at all

  /** `page` has { gateway, line, drafts, thread, composer, onChange, onAnswer, onLocked }. */
  constructor(chat, page) {
    this.chat = chat;
    this.#page = page;
    this.#path = `/api/chats/web/${encodeURIComponent(chat)}`;
    this.#history = new History(page, this.#left.signal);
  }

  get title() {
    const [first] = this.#live.keys();
    return this.#history.session?.title ?? (first ? titleOf(first) : "");
  }

  get isBusy() {
    return this.#live.size > 0 || this.#unsent !== null;
  }

  get isUntouched() {
    return !this.isBusy && !this.#shown;
  }

  async open() {
    const { composer, drafts } = this.#page;
    const draft = drafts.get(this.chat);
    composer.isOpen = true;
    composer.text = draft.text;
    await this.#reload({ evenIfSame: true });
    if (draft.sending && !this.#left.signal.aborted) await this.send(draft.text, { again: true });
  }

  /** Catch up with what happened elsewhere: another window, another device, a time without a line. */
  async refresh() {
    if (!this.isBusy) await this.#reload({ evenIfSame: false });
  }

  async showEarlier() {
    await this.#guard(() => this.#history.showEarlier());
  }

  /** The reader goes elsewhere; the gateway goes on answering. What it has not stored yet is still brought there. */
  leave() {
    this.#left.abort();
  }

  /**
   * Bring a message to the gateway, under one id however often it takes, and show its answer. It counts as sent when
   * the gateway has stored it; until then its text stays in the box.
   */
  async send(text, { again = false } = {}) {
    const { gateway, line, drafts, composer } = this.#page;
    if (this.#live.size >= MOST_UNDER_WAY && !text.startsWith("/")) {
      composer.complain("Three messages are under way; this one can be sent when one of them is answered.");
      return;
    }
    const message = drafts.send(this.chat, text);
    const sending = new AbortController();
    this.#unsent = sending;
    composer.complain("");
    composer.isSending = composer.canStop = true;
    let turn = null;
    const attempt = async () => {
      await unlessAborted(this.#loaded, sending.signal);
      const events = await gateway.events(`${this.#path}/messages`, { body: message, signal: sending.signal });
      for await (const event of events) {
        line.works();
        if (event.type === "accepted") turn ??= this.#accepted(message, sending);
        else this.#play(turn, event);
        if (event.type === "answer") return;
      }
      throw new Away("The answer broke off.");
    };
    try {
      await line.persist(attempt, sending.signal);
    } catch (error) {
      if (this.#unsent === sending) this.#notSent(error);
      else if (turn && error instanceof Refused) this.#failed(turn, error);
      else this.#report(error);
    }
    // A message from before a reload may have been answered in the meantime: then it is on the page already.
    if (again && !this.isBusy) await this.#reload({ evenIfSame: true });
  }

  /** Stop the answer; or, when the message is not even sent, the sending. */
  async stop() {
    const { gateway, composer } = this.#page;
    if (this.#unsent) {
      this.#unsent.abort();
      return;
    }
    if (!this.#live.size) return;
    composer.stopping();
    await this.#guard(async () => {
      const body = { text: "/stop", id: newId() };
      const events = await gateway.events(`${this.#path}/messages`, { body, signal: this.#left.signal });
      for await (const event of events) if (event.type === "answer") return;
    });
    composer.canStop = this.#live.size > 0;
  }

  #accepted({ id, text }, sending) {
    const { drafts, composer, thread, onChange } = this.#page;
    drafts.drop(this.chat);
    this.#unsent = null;
    if (this.#left.signal.aborted) {
      sending.abort();
      return null;
    }
    this.#left.signal.addEventListener("abort", () => sending.abort());
    composer.isSending = false;
    composer.text = "";
    const turn = thread.begin(text);
    this.#live.set(turn, id);
    onChange();
    return turn;
  }

  #play(turn, event) {
    if (!turn) return;
    turn.play(event);
    if (event.type === "started") this.#started(turn, event.session);
    else if (event.type === "tool_started") this.#page.thread.announce(`Using ${event.name}`);
    else if (event.type === "answer") this.#over(turn, event);
  }

  #started(turn, id) {
    if (!this.#live.has(turn)) return;
    const before = this.#history.session;
    if (before && before.id !== id) {
      this.#page.thread.divide(turn, "The conversation before had ended; a new one begins here.");
    }
    if (before?.id !== id) this.#history.session = { id, title: titleOf(turn) };
  }

  #over(turn, { text, outcome, session }) {
    const { composer, thread, onChange, onAnswer } = this.#page;
    if (!this.#live.delete(turn)) return; // it belongs to a conversation that was ended
    thread.announce(text);
    if (ENDS_CONVERSATION.has(turn.command) && outcome === "ok") {
      this.#live.clear();
      this.#history.session = null;
      this.#shown = "";
      thread.startAnew(text);
    } else if (!turn.command) {
      this.#shown = JSON.stringify([session ?? "", turn.question, text]);
    }
    composer.canStop = this.#live.size > 0;
    onChange();
    onAnswer();
  }

  #reload(how) {
    this.#loaded = this.#guard(() => this.#load(how));
    return this.#loaded;
  }

  /** Show what is stored, and watch what is being answered. */
  async #load({ evenIfSame }) {
    const { line, drafts, onChange } = this.#page;
    const { running, stored } = await line.persist(() => this.#look(), this.#left.signal);
    const exchange = lastExchange(stored);
    if (evenIfSame || running || (stored.session && exchange !== this.#shown)) {
      this.#history.show(stored, { answering: running?.question });
      this.#shown = stored.session ? exchange : "";
    }
    onChange();
    if (!running) return;
    const draft = drafts.get(this.chat);
    if (draft.sending && draft.id === running.id) running.events.return(); // sending it again shows it
    else this.#guard(() => this.#watch(running));
  }

  /** What runs and what is stored, in this order: a turn that ends in between is told by its events, not lost. */
  async #look() {
    const running = await this.#running();
    try {
      return { running, stored: await this.#history.fetch(this.#path) };
    } catch (error) {
      running?.events.return();
      throw error;
    }
  }

  /** The turn that runs in this chat: its question, and its events from the first on. */
  async #running() {
    const events = await this.#page.gateway.events(`${this.#path}/events`, { signal: this.#left.signal });
    if (!events) return null;
    const { value } = await events.next();
    if (!value) throw new Away("The answer broke off.");
    return { question: value.text, id: value.id, events };
  }

  /** Follow the turns that were begun before this page was there, one after the other. */
  async #watch(running) {
    const { line, thread, composer } = this.#page;
    while (running) {
      const turn = thread.begin(running.question);
      this.#live.set(turn, running.id);
      composer.canStop = true;
      try {
        for await (const event of running.events) {
          line.works();
          this.#play(turn, event);
        }
      } catch (error) {
        if (!(error instanceof Away)) throw error;
      }
      if (!turn.isOver) {
        await line.rest(new Away("The answer broke off."));
        this.#live.delete(turn);
        turn.root.remove();
        return this.#reload({ evenIfSame: true });
      }
      running = await line.persist(() => this.#running(), this.#left.signal);
      // What was sent from this page has its own stream.
      if (running && [...this.#live.values()].includes(running.id)) return running.events.return();
    }
  }

  #notSent(error) {
    const { composer, drafts } = this.#page;
    this.#unsent = null;
    // Behind a closed door it is still on its way: it goes out when the door opens.
    if (!(error instanceof Locked)) drafts.unsend(this.chat, { refused: error instanceof Refused });
    if (this.#left.signal.aborted) return;
    composer.isSending = false;
    composer.canStop = this.#live.size > 0;
    this.#report(error);
  }

  #failed(turn, error) {
    this.#live.delete(turn);
    turn.fail(error.message);
    this.#page.composer.canStop = this.#live.size > 0;
  }

  /** The edge where errors become sentences. */
  async #guard(work) {
    try {
      await work();
    } catch (error) {
      this.#report(error);
    }
  }

  #report(error) {
    if (this.#left.signal.aborted || error.name === "AbortError") return;
    if (error instanceof Locked) this.#page.onLocked();
    else if (error instanceof Refused || error instanceof Away) this.#page.composer.complain(error.message);
    else throw error;
  }
}

function titleOf({ question }) {
  return question.trimStart().split("\n", 1)[0].slice(0, 80);
}
