// The page as a whole: which conversation is open, who may look, and whether the gateway is there.

import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { askForToken, takeTokenFromAddress } from "./door.js";
import { Gateway, Locked, newId } from "./gateway.js";
import { Line } from "./line.js";
import { PastConversation } from "./past.js";
import { chatOf, Sidebar } from "./sidebar.js";
import { Drafts, read, write } from "./storage.js";
import { Thread } from "./thread.js";

const HEARTBEAT = 30_000;
const IDEAS = ["What can you do?", "Which files are there? Sum up the most important one.", "/help"];
const DEMO_IDEAS = ["What can you do?", "list files", "count to 500", "/help"];

const byId = (id) => document.getElementById(id);

class App {
  gateway = new Gateway();
  drafts = new Drafts();
  line = new Line((reason) => this.#lineChanged(reason));
  thread = new Thread({ onEarlier: () => this.#open.showEarlier() });
  composer = new Composer({
    onSend: (text) => this.#open.send(text),
    onStop: () => this.#open.stop(),
    onEdit: (text) => this.drafts.keep(this.#open.chat, text),
  });
  #sidebar = new Sidebar({ gateway: this.gateway, onLocked: () => this.onLocked() });
  #open = null; // the conversation on the page
  #locked = false;

  async start() {
    this.#wire();
    this.gateway.token = takeTokenFromAddress() ?? read("token") ?? "";
    if (this.gateway.token) await this.#enter();
    else await this.onLocked();
  }

  /** Ask for the token, and go on where we were. */
  onLocked = async () => {
    if (this.#locked) return;
    this.#locked = true;
    byId("page").hidden = true;
    this.#open?.leave();
    await askForToken(this.gateway);
    this.#locked = false;
    await this.#enter();
  };

  /** The open conversation's name changed, or another one is open. */
  onChange = () => {
    const title = this.#open.title || "New conversation";
    byId("title").textContent = title;
    document.title = `${title} · Holdfast`;
    this.#sidebar.current = { chat: this.#open.chat, session: this.#open.sessionId };
  };

  onAnswer = () => {
    this.#sidebar.refresh();
    if (document.hidden) document.title = `● ${document.title}`;
  };

  onOpen = (session) => location.replace(`#/c/${encodeURIComponent(chatOf(session))}`);

  async #enter() {
    byId("page").hidden = false;
    this.#route();
    this.#sidebar.refresh();
    await this.#checkStatus();
  }

  #route() {
    const [, kind, name] = /^#\/([cs])\/([^/]+)$/.exec(location.hash) ?? [];
    if (!kind) {
      history.replaceState(null, "", `#/c/${newId()}`);
      this.#route();
      return;
    }
    this.#open?.leave();
    this.thread.clear();
    this.composer.isSending = this.composer.canStop = false;
    this.composer.complain("");
    const id = decodeURIComponent(name);
    this.#open = kind === "c" ? new Conversation(id, this) : new PastConversation(id, this);
    this.#showMenu(false);
    this.onChange();
    this.#open.open();
    this.composer.focus();
  }

  #startAnew() {
    if (!this.#open.isUntouched) location.hash = `#/c/${newId()}`;
    this.#showMenu(false);
    this.composer.focus();
  }

  async #checkStatus() {
    try {
      this.#showStatus(await this.line.persist(() => this.gateway.json("/api/status")));
    } catch (error) {
      if (!(error instanceof Locked)) throw error;
      await this.onLocked();
    }
  }

  #showStatus({ model, version, demo }) {
    const name = demo ? "demo model" : model.name;
    if (byId("model").textContent === name && byId("version").textContent === version) return;
    byId("model").textContent = name;
    byId("model").title = `${model.name}, provider ${model.provider}: ${model.why}`;
    byId("model").hidden = false;
    byId("version").textContent = version;
    byId("empty-model").textContent = demo
      ? "This is the built-in demo model: it follows a few plain words, so that everything can be tried without a key."
      : `${model.name} answers here.`;
    showIdeas(demo ? DEMO_IDEAS : IDEAS, (idea) => {
      this.composer.text = idea;
      this.drafts.keep(this.#open.chat, idea);
      byId("box").focus();
    });
  }

  #lineChanged(reason) {
    byId("line").hidden = !reason;
    byId("line-text").textContent = reason && `${reason} Trying again; nothing is lost.`;
    if (reason) return;
    this.#sidebar.refresh();
    this.#open?.refresh();
  }

  #showMenu(open) {
    document.body.classList.toggle("menu-open", open);
    byId("veil").hidden = !open;
    byId("open-menu").ariaExpanded = String(open);
    byId("main").inert = open;
    if (open) byId("close-menu").focus();
  }

  #wire() {
    addEventListener("hashchange", () => {
      if (takeTokenFromAddress()) location.reload();
      else if (!this.#locked) this.#route();
    });
    byId("new").addEventListener("click", () => this.#startAnew());
    byId("anew").addEventListener("click", () => this.#startAnew());
    byId("open-menu").addEventListener("click", () => this.#showMenu(true));
    byId("close-menu").addEventListener("click", () => this.#showMenu(false));
    byId("veil").addEventListener("click", () => this.#showMenu(false));
    byId("hurry").addEventListener("click", () => this.line.hurry());
    byId("list").addEventListener("click", (event) => {
      if (event.target.closest("a")) this.#showMenu(false);
    });
    document.addEventListener("keydown", (event) => this.#key(event));
    document.addEventListener("visibilitychange", () => this.#lookedAt());
    setInterval(() => {
      if (!document.hidden && !this.#locked && !this.line.isBroken) this.#checkStatus();
    }, HEARTBEAT);
    chooseTheme();
  }

  #lookedAt() {
    if (document.hidden || this.#locked || !this.#open) return;
    this.onChange();
    this.#open.refresh();
    this.#sidebar.refresh();
  }

  #key(event) {
    if (this.#locked || event.isComposing) return;
    const writing = event.target.closest("input, textarea, select");
    if (event.key === "Escape") {
      if (document.body.classList.contains("menu-open")) this.#showMenu(false);
      else if (event.target.id === "search" && this.#sidebar.clearSearch()) event.preventDefault();
      else this.#open.stop();
    } else if (event.key === "/" && !writing && !event.ctrlKey && !event.metaKey) {
      byId("box").focus(); // and the slash is typed there: it begins a command
    } else if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.#showMenu(matchMedia("(max-width: 50rem)").matches);
      this.#sidebar.focusSearch();
    }
  }
}

function showIdeas(ideas, onPick) {
  const items = ideas.map((idea) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = idea;
    button.addEventListener("click", () => onPick(idea));
    const item = document.createElement("li");
    item.append(button);
    return item;
  });
  byId("ideas").replaceChildren(...items);
}

function chooseTheme() {
  const choice = byId("theme");
  choice.value = read("theme") ?? "";
  choice.addEventListener("change", () => {
    write("theme", choice.value || null);
    if (choice.value) document.documentElement.dataset.theme = choice.value;
    else delete document.documentElement.dataset.theme;
  });
}

new App().start();
