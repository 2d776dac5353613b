// The list of conversations, newest first, and the search through them.

import { Away, Locked } from "./gateway.js";

const PAGE = 30;
const TYPING_PAUSE = 200;
// The gateway marks what was found with these two characters, which no message contains.
const FOUND = /\u0002([^\u0003]*)\u0003/g;

export class Sidebar {
  #gateway;
  #onLocked;
  #search = document.getElementById("search");
  #list = document.getElementById("list");
  #note = document.getElementById("list-note");
  #more = document.getElementById("more");
  #sessions = [];
  #next = null;
  #asking = new AbortController();
  #timer = 0;
  #current = {};

  constructor({ gateway, onLocked }) {
    this.#gateway = gateway;
    this.#onLocked = onLocked;
    this.#more.addEventListener("click", () => this.#load({ more: true }));
    this.#search.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.refresh(), TYPING_PAUSE);
    });
  }

  /** Show which one is open: { chat } or { session }. */
  set current(current) {
    this.#current = current;
    this.#mark();
  }

  focusSearch() {
    this.#search.focus();
    this.#search.select();
  }

  /** Take the search back; says whether there was one. */
  clearSearch() {
    if (!this.#search.value) return false;
    this.#search.value = "";
    this.refresh();
    return true;
  }

  refresh() {
    return this.#load({ more: false });
  }

  async #load({ more }) {
    this.#asking.abort();
    this.#asking = new AbortController();
    const wanted = this.#search.value.trim();
    const query = new URLSearchParams({ channel: "web", limit: PAGE });
    if (wanted) query.set("q", wanted);
    if (more) query.set("before", this.#next);
    try {
      const { sessions, next } = await this.#gateway.json(`/api/sessions?${query}`, { signal: this.#asking.signal });
      this.#sessions = more ? [...this.#sessions, ...sessions] : sessions;
      this.#next = next;
      this.#show(wanted);
    } catch (error) {
      if (error instanceof Locked) this.#onLocked();
      else if (error instanceof Away || error.name === "AbortError") return; // asked again when the line is back
      else this.#tell(error.message);
    }
  }

  #show(wanted) {
    this.#tell(this.#sessions.length ? "" : wanted ? "Nothing found." : "Conversations will be listed here.");
    this.#list.replaceChildren(...this.#sessions.map((session) => entry(session)));
    this.#more.hidden = this.#next === null;
    this.#mark();
  }

  #mark() {
    const { chat, session } = this.#current;
    for (const link of this.#list.querySelectorAll("a")) {
      const here = session ? link.dataset.session === session : link.hash === `#/c/${encodeURIComponent(chat)}`;
      if (here) link.ariaCurrent = "page";
      else link.ariaCurrent = null;
    }
  }

  #tell(sentence) {
    this.#note.textContent = sentence;
    this.#note.hidden = !sentence;
  }
}

/** The chat of a session of this channel: "web:abc" is abc. */
export function chatOf({ chat }) {
  return decodeURIComponent(chat.slice(chat.indexOf(":") + 1));
}

function entry(session) {
  const link = document.createElement("a");
  link.href = session.ended ? `#/s/${encodeURIComponent(session.id)}` : `#/c/${encodeURIComponent(chatOf(session))}`;
  link.dataset.session = session.id;
  const title = document.createElement("span");
  title.className = "entry-title";
  title.textContent = session.title || "Untitled";
  if (session.ended) {
    link.className = "entry-ended";
    title.append(unseen(" (ended)"));
  }
  const when = document.createElement("time");
  const used = new Date(session.last_used * 1000);
  when.dateTime = used.toISOString();
  when.title = used.toLocaleString();
  when.textContent = shortDate(used);
  link.append(title, when);
  if (session.snippet) link.append(snippet(session.snippet));
  const item = document.createElement("li");
  item.append(link);
  return item;
}

function unseen(words) {
  const node = document.createElement("span");
  node.className = "unseen";
  node.textContent = words;
  return node;
}

function snippet(text) {
  const node = document.createElement("span");
  node.className = "snippet";
  let from = 0;
  for (const found of text.matchAll(FOUND)) {
    const mark = document.createElement("mark");
    mark.textContent = found[1];
    node.append(text.slice(from, found.index), mark);
    from = found.index + found[0].length;
  }
  node.append(text.slice(from));
  return node;
}

function shortDate(date) {
  const now = new Date();
  if (date.toDateString() === now.toDateString()) {
    return date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  }
  const sameYear = date.getFullYear() === now.getFullYear();
  return date.toLocaleDateString([], { day: "numeric", month: "short", year: sameYear ? undefined : "numeric" });
}
