// One exchange on the page: a question and its answer, which may still be growing.

import { copyOnClick } from "./clipboard.js";
import { Markdown } from "./markdown.js";

/** What the gateway takes for a command: "/etc/hosts" is none. */
const COMMAND = /^\/([a-z][a-z_]*)(?:@\w+)?(?:\s|$)/i;
const TOOL_STATES = { running: "running", done: "", failed: "failed", lost: "no result" };

export class Turn {
  root = fromTemplate("turn-template");
  isOver = false;
  #answer = this.root.querySelector(".answer");
  #parts = this.root.querySelector(".parts");
  #painter = new Painter(() => this.#text?.render());
  #text = null; // the Markdown that grows at the answer's end; null after a tool call
  #tools = new Map();
  #thought = null;

  /** `question` is null for an answer whose question lies further back than what was loaded. */
  constructor(question) {
    this.question = question;
    this.command = COMMAND.exec(question ?? "")?.[1].toLowerCase() ?? "";
    const asked = this.root.querySelector(".question");
    asked.querySelector(".words").textContent = question ?? "";
    asked.hidden = question === null;
    this.root.classList.toggle("command", Boolean(this.command));
    this.#answer.ariaBusy = "true";
    this.#doing(this.command ? "" : "Waiting");
    copyOnClick(this.root.querySelector(".copy-answer"), () => this.words);
  }

  /** The last part of the answer as it was written, in Markdown. */
  get words() {
    return this.#text?.source ?? "";
  }

  play(event) {
    switch (event.type) {
      case "started":
        this.#restart();
        break;
      case "text":
        this.#write(event.text);
        break;
      case "reasoning":
        this.#think(event.text);
        break;
      case "tool_started":
        this.#useTool({ ...event, id: event.call_id });
        this.#doing(`Using ${event.name}`);
        break;
      case "tool_finished":
        this.#showResult(event);
        this.#doing("Thinking");
        break;
      case "retrying":
        this.#voidText();
        this.#doing(`${event.reason} Asking again in ${Math.max(1, Math.round(event.wait))} s`);
        break;
      case "answer":
        this.#finish(event);
    }
  }

  /** Show a stored message of this exchange. */
  recall({ role, text, tool_calls: calls = [], ...rest }) {
    if (role === "tool") {
      this.#showResult({ ...rest, text });
      return;
    }
    this.#closeText();
    if (text) this.#write(text);
    for (const call of calls) this.#useTool(call);
  }

  /** Nothing more will come. */
  settle() {
    this.isOver = true;
    this.#painter.cancel();
    this.#text?.finish();
    for (const tool of this.#tools.values()) {
      if (tool.dataset.state === "running") setToolState(tool, "lost");
    }
    this.#answer.ariaBusy = "false";
    this.root.classList.add("over");
    this.root.querySelector(".after").hidden = !this.words;
  }

  /** End it with a sentence on what went wrong. */
  fail(sentence) {
    this.settle();
    this.#note(sentence, "trouble");
  }

  /** The gateway tells it from the beginning, also when it is told a second time. */
  #restart() {
    this.#painter.cancel();
    this.#parts.replaceChildren();
    this.#tools.clear();
    this.#text = this.#thought = null;
    this.#doing("Thinking");
  }

  #write(text) {
    if (!this.#text) {
      const part = document.createElement("div");
      part.className = "prose";
      this.#parts.append(part);
      this.#text = new Markdown(part);
    }
    this.#text.append(text);
    this.#thought = null;
    this.#painter.paint();
    this.#doing("");
  }

  #closeText() {
    this.#text?.finish();
    this.#text = null;
  }

  #voidText() {
    if (!this.#text) return;
    this.#parts.lastElementChild.remove();
    this.#text = null;
  }

  #think(text) {
    if (!this.#thought) {
      this.#closeText();
      this.#thought = fromTemplate("thought-template");
      this.#parts.append(this.#thought);
    }
    this.#thought.querySelector(".thought-body").append(text);
  }

  #useTool({ id, name, arguments: source }) {
    this.#closeText();
    this.#thought = null;
    const tool = fromTemplate("tool-template");
    const { pretty, gist } = readArguments(source);
    tool.querySelector(".tool-name").textContent = name;
    tool.querySelector(".tool-gist").textContent = gist;
    tool.querySelector(".tool-arguments").textContent = pretty;
    setToolState(tool, "running");
    this.#tools.set(id, tool);
    this.#parts.append(tool);
  }

  #showResult({ call_id: id, name, text, failed }) {
    if (!this.#tools.has(id)) this.#useTool({ id, name, arguments: "" });
    const tool = this.#tools.get(id);
    tool.querySelector(".tool-result").textContent = text;
    setToolState(tool, failed ? "failed" : "done");
  }

  #finish({ text, outcome, error, usage }) {
    if (outcome === "failed") {
      this.fail(text);
      return;
    }
    if (this.words.trim() !== text.replaceAll("\r", "").trim()) {
      this.#voidText();
      this.#write(text);
    }
    this.settle();
    if (error === "length") this.#note("The answer was cut off: it reached the model's limit of length.", "aside");
    if (usage?.output) this.root.querySelector(".usage").textContent = tokens(usage);
  }

  #note(sentence, className) {
    const note = document.createElement("p");
    note.className = className;
    note.textContent = sentence;
    this.#parts.append(note);
  }

  #doing(what) {
    this.root.querySelector(".doing").textContent = what;
    this.root.querySelector(".working").hidden = !what;
  }
}

function fromTemplate(id) {
  return document.getElementById(id).content.firstElementChild.cloneNode(true);
}

function setToolState(tool, state) {
  tool.dataset.state = state;
  tool.querySelector(".tool-state").textContent = TOOL_STATES[state];
}

/** A call's arguments, laid out for reading, and their values in one line; a model may also write no JSON at all. */
function readArguments(source) {
  try {
    const value = JSON.parse(source);
    const values = value && typeof value === "object" ? Object.values(value) : [value];
    const gist = values.map((each) => (typeof each === "string" ? each : JSON.stringify(each))).join(" ");
    return { pretty: JSON.stringify(value, null, 2), gist: gist.slice(0, 200) };
  } catch {
    return { pretty: source, gist: source.slice(0, 200) };
  }
}

function tokens({ input = 0, output = 0 }) {
  const count = new Intl.NumberFormat("en");
  return `${count.format(input)} tokens read, ${count.format(output)} written`;
}

/** Paints at most once a frame, and rests in proportion to what painting cost: a long answer never stalls the page. */
class Painter {
  #draw;
  #timer = 0;
  #frame = 0;
  #restUntil = 0;

  constructor(draw) {
    this.#draw = draw;
  }

  paint() {
    if (this.#timer || this.#frame) return;
    const rest = this.#restUntil - performance.now();
    if (rest > 0) this.#timer = setTimeout(() => this.#nextFrame(), rest);
    else this.#nextFrame();
  }

  cancel() {
    clearTimeout(this.#timer);
    cancelAnimationFrame(this.#frame);
    this.#timer = this.#frame = 0;
  }

  #nextFrame() {
    this.#timer = 0;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      const begun = performance.now();
      this.#draw();
      // A task after the frame: by then the browser has laid it out, which is most of the cost.
      setTimeout(() => {
        const now = performance.now();
        this.#restUntil = now + 3 * (now - begun - 4);
      });
    });
  }
}
