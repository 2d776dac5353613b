// What is stored of a conversation, page by page from its end.

export class History {
  session = null;
  #messages = [];
  #gateway;
  #thread;
  #signal;

  constructor({ gateway, thread }, signal) {
    this.#gateway = gateway;
    this.#thread = thread;
    this.#signal = signal;
  }

  fetch(path) {
    return this.#gateway.json(path, { signal: this.#signal });
  }

  /** Show it, without the unfinished end where that is being answered and told anew by its events. */
  show({ session, messages, more }, { answering = null } = {}) {
    this.session = session;
    const end = messages.findLastIndex(({ role }) => role === "user");
    const tellsTwice = messages[end]?.text === answering && !isAnswered(messages);
    this.#messages = tellsTwice ? messages.slice(0, end) : messages;
    this.#thread.show(this.#messages, more);
  }

  async showEarlier() {
    const before = this.#messages[0].seq;
    const { messages, more } = await this.fetch(`/api/sessions/${this.session.id}?before=${before}`);
    this.#messages = [...messages, ...this.#messages];
    this.#thread.showEarlier(this.#messages, more);
  }
}

/** An exchange is complete when its last word is the agent's and calls no tool. */
function isAnswered(messages) {
  const last = messages.at(-1);
  return last?.role === "assistant" && !last.tool_calls?.length;
}

/** What was last asked and answered, to tell whether a page shows all of it. */
export function lastExchange({ session, messages }) {
  const said = (wanted) => messages.findLast(({ role }) => role === wanted)?.text ?? "";
  return JSON.stringify([session?.id ?? "", said("user"), said("assistant")]);
}
