// What the browser keeps for us between visits: the token, the theme, and what was written but not yet sent.

import { newId } from "./gateway.js";

const MOST_DRAFTS = 20;

/** A value kept from before; null where there is none, or where the browser keeps nothing. */
export function read(name) {
  try {
    return JSON.parse(localStorage.getItem(`holdfast.${name}`));
  } catch {
    return null;
  }
}

export function write(name, value) {
  try {
    if (value === null) localStorage.removeItem(`holdfast.${name}`);
    else localStorage.setItem(`holdfast.${name}`, JSON.stringify(value));
  } catch (error) {
    console.warn("This browser keeps nothing between visits:", error.message);
  }
}

/**
 * What stands in the box, per chat. A draft has an id from the moment it is sent: as long as its text stays the same
 * it is repeated under that id, so that the gateway takes it once however often it arrives.
 */
export class Drafts {
  get(chat) {
    return this.#all().find((draft) => draft.chat === chat) ?? { chat, text: "" };
  }

  keep(chat, text) {
    const before = this.get(chat);
    if (text !== before.text) this.#put({ chat, text });
  }

  /** Mark the text as on its way; returns the message to send. */
  send(chat, text) {
    const before = this.get(chat);
    const id = before.text === text && before.id ? before.id : newId();
    this.#put({ chat, text, id, sending: true });
    return { id, text };
  }

  /** It did not get through and nobody tries any more; the text stays. A refused one gets a new id next time. */
  unsend(chat, { refused }) {
    const { text, id } = this.get(chat);
    this.#put(refused ? { chat, text } : { chat, text, id });
  }

  drop(chat) {
    this.#put({ chat, text: "" });
  }

  #all() {
    const drafts = read("drafts");
    return Array.isArray(drafts) ? drafts : [];
  }

  #put(draft) {
    const others = this.#all().filter(({ chat }) => chat !== draft.chat);
    write("drafts", [...(draft.text ? [draft] : []), ...others].slice(0, MOST_DRAFTS));
  }
}
