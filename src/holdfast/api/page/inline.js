// Markdown inside a line: emphasis, code, links. Text becomes DOM nodes by createElement and text nodes alone,
// so nothing in an answer can become markup. Every pass is linear in the text, whatever is in it.

const SPECIAL = /[\\`*_~[\]<&\n]|!\[|https?:\/\//gi;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const TICKS = /`+/y;
const LINE_BREAK_TAG = /<br\s{0,8}\/?>/iy;
const ANGLE_LINK = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/iy;
const BARE_LINK = /https?:\/\/[^\s<>[\]"`]+/iy;
const ENTITY = /&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z]{2,6}));/iy;
const ENTITIES = new RegExp(ENTITY.source, "gi");
const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", mdash: "—", ndash: "–" };
const SAFE_SCHEMES = new Set(["http:", "https:", "mailto:"]);

// A browser lays out by recursion: a tree as deep as a hostile answer likes would bring the tab down.
const DEEPEST = 24;
const MOST_OPEN_BRACKETS = 64;

/** Append `text` to `parent` as nodes; `unfinished` shows what is still being written as if it were closed. */
export function renderInline(parent, text, unfinished = false) {
  const tokens = new Tokenizer(text, unfinished).read();
  pairEmphasis(tokens, unfinished);
  build(parent, tokens);
}

/** The address if it is absolute and of a harmless scheme, else null. */
export function safeHref(address) {
  let url;
  try {
    url = new URL(decodeEntities(address));
  } catch {
    return null;
  }
  return SAFE_SCHEMES.has(url.protocol) ? url.href : null;
}

/** Reads a text from left to right, each mark once. */
class Tokenizer {
  tokens = [];
  #text;
  #at = 0;
  #unfinished;
  #brackets = []; // indices of "[" tokens that may yet begin a link
  #ticks;

  constructor(text, unfinished) {
    this.#text = text;
    this.#unfinished = unfinished;
    this.#ticks = tickRuns(text);
  }

  read() {
    while (this.#at < this.#text.length) {
      SPECIAL.lastIndex = this.#at;
      const found = SPECIAL.exec(this.#text);
      this.#say(this.#text.slice(this.#at, found?.index));
      if (!found) break;
      this.#at = found.index;
      this.#readMark(found[0]);
    }
    return this.tokens;
  }

  #readMark(mark) {
    switch (mark) {
      case "\\":
        return this.#readEscape();
      case "`":
        return this.#readCode();
      case "*":
      case "_":
      case "~":
        return this.#readRun(mark);
      case "[":
      case "![":
        return this.#openBracket(mark);
      case "]":
        return this.#closeBracket();
      case "<":
        return this.#readAngle();
      case "&":
        return this.#readEntity();
      case "\n":
        return this.#take("\n", { kind: "break" });
      default:
        return this.#readAddress(mark);
    }
  }

  /** Go past `source`, which stands for these tokens. */
  #take(source, ...tokens) {
    this.tokens.push(...tokens);
    this.#at += source.length;
  }

  /** Go past `source`, which stands for these words. */
  #takeAs(words, source = words) {
    this.#say(words);
    this.#at += source.length;
  }

  #say(words) {
    const last = this.tokens.at(-1);
    if (last?.kind === "text" && !last.bracket) last.text += words;
    else if (words) this.tokens.push({ kind: "text", text: words });
  }

  #match(pattern) {
    pattern.lastIndex = this.#at;
    return pattern.exec(this.#text);
  }

  #readEscape() {
    const next = this.#text[this.#at + 1] ?? "";
    if (next === "\n") this.#take("\\\n", { kind: "break" });
    else if (PUNCTUATION.test(next)) this.#takeAs(next, `\\${next}`);
    else this.#takeAs("\\");
  }

  #readCode() {
    const [ticks] = this.#match(TICKS);
    const start = this.#at + ticks.length;
    const runs = this.#ticks.get(ticks.length) ?? { places: [], next: 0 };
    while (runs.places[runs.next] < start) runs.next += 1;
    let end = runs.places[runs.next];
    if (end === undefined && this.#unfinished && ticks.length < 3) end = this.#text.length;
    if (end === undefined) {
      this.#takeAs(ticks);
      return;
    }
    let code = this.#text.slice(start, end).replaceAll("\n", " ");
    if (code.startsWith(" ") && code.endsWith(" ") && code.trim()) code = code.slice(1, -1);
    this.tokens.push({ kind: "code", text: code });
    this.#at = end + ticks.length;
  }

  /** A run of *, _ or ~ and whether it may open or close emphasis: an underscore inside a word does neither. */
  #readRun(mark) {
    let end = this.#at;
    while (this.#text[end] === mark) end += 1;
    const before = this.#text[this.#at - 1] ?? " ";
    const after = this.#text[end] ?? " ";
    const inWord = mark === "_" ? /[\p{L}\p{N}]/u : /(?!)/;
    const opens = /\S/.test(after) && !inWord.test(before);
    const closes = /\S/.test(before) && !inWord.test(after);
    this.tokens.push({ kind: "run", mark, left: end - this.#at, opens, closes, starts: [], ends: 0 });
    this.#at = end;
  }

  #openBracket(mark) {
    this.#brackets.push(this.tokens.length);
    if (this.#brackets.length > MOST_OPEN_BRACKETS) this.#brackets.shift();
    this.#take(mark, { kind: "text", text: mark, bracket: true });
  }

  #closeBracket() {
    const opener = this.#brackets.pop();
    const follows = opener !== undefined && this.#text[this.#at + 1] === "(";
    const target = follows ? readTarget(this.#text, this.#at + 2) : null;
    const href = target && safeHref(target.address);
    if (!href) {
      this.#takeAs("]");
      return;
    }
    const image = this.tokens[opener].text === "![";
    if (opener === this.tokens.length - 1) this.#say(target.address);
    this.tokens[opener] = { kind: "open", href, image };
    this.tokens.push({ kind: "close" });
    // A link in a link is none; a picture in a link is its words.
    if (!image) this.#brackets.length = 0;
    this.#at = target.end;
  }

  #readAngle() {
    const tag = this.#match(LINE_BREAK_TAG);
    const angle = tag ? null : this.#match(ANGLE_LINK);
    const href = angle && safeHref(angle[1]);
    if (tag) this.#take(tag[0], { kind: "break" });
    else if (href) this.#take(angle[0], ...link(href, angle[1]));
    else this.#takeAs("<");
  }

  #readEntity() {
    const entity = this.#match(ENTITY);
    if (entity) this.#takeAs(decodeEntity(entity), entity[0]);
    else this.#takeAs("&");
  }

  #readAddress(mark) {
    const inWord = /\w/.test(this.#text[this.#at - 1] ?? "");
    const bare = inWord ? null : this.#match(BARE_LINK);
    const words = bare && withoutTrailingPunctuation(bare[0]);
    const href = words && safeHref(words);
    if (href) this.#take(words, ...link(href, words));
    else this.#takeAs(mark);
  }
}

function link(href, words) {
  return [{ kind: "open", href }, { kind: "text", text: words }, { kind: "close" }];
}

/** Where runs of backticks lie, by their length: looking for a partner must not search the text each time. */
function tickRuns(text) {
  const byLength = new Map();
  for (const run of text.matchAll(/`+/g)) {
    const length = run[0].length;
    if (!byLength.has(length)) byLength.set(length, { places: [], next: 0 });
    byLength.get(length).places.push(run.index);
  }
  return byLength;
}

/** What stands in the round brackets of a link, up to a few levels of brackets in the address itself. */
function readTarget(text, start) {
  let at = start;
  while (text[at] === " ") at += 1;
  let address;
  if (text[at] === "<") {
    const end = at + 1 + text.slice(at + 1, at + 2048).search(/[<>\n]|$/);
    if (text[end] !== ">") return null;
    address = text.slice(at + 1, end);
    at = end + 1;
  } else {
    const from = at;
    let depth = 0;
    for (; at < text.length && !/\s/.test(text[at]); at += 1) {
      if (text[at] === "\\") at += 1;
      else if (text[at] === "(" && (depth += 1) > 8) return null;
      else if (text[at] === ")" && (depth -= 1) < 0) break;
    }
    address = text.slice(from, at).replace(/\\([!-/:-@[-`{-~])/g, "$1");
  }
  while (text[at] === " " || text[at] === "\n") at += 1;
  if (text[at] === '"' || text[at] === "'") {
    at = text.indexOf(text[at], at + 1) + 1;
    if (at === 0) return null;
    while (text[at] === " ") at += 1;
  }
  return text[at] === ")" ? { address, end: at + 1 } : null;
}

function withoutTrailingPunctuation(address) {
  let surplus = address.split(")").length - address.split("(").length;
  let end = address.length;
  for (; end > 0; end -= 1) {
    const last = address[end - 1];
    if (last === ")" && surplus > 0) surplus -= 1;
    else if (!"?!.,:;*_~'|".includes(last)) break;
  }
  return address.slice(0, end);
}

function decodeEntity([source, decimal, hexadecimal, name]) {
  if (name) return NAMED[name] ?? source;
  const point = decimal ? Number.parseInt(decimal, 10) : Number.parseInt(hexadecimal, 16);
  const valid = point > 0 && point <= 0x10ffff && !(point >= 0xd800 && point <= 0xdfff);
  return valid ? String.fromCodePoint(point) : "\ufffd";
}

function decodeEntities(text) {
  return text.replace(ENTITIES, (...parts) => decodeEntity(parts));
}

/** Pair the runs that open emphasis with those that close it; each run is looked at once per character of it. */
function pairEmphasis(tokens, unfinished) {
  const open = { "*": [], _: [], "~": [] };
  const stacks = Object.values(open);
  const floors = []; // how high each stack stood where the link around us began: emphasis never crosses its edge
  const floorOf = (mark) => floors.at(-1)?.[mark] ?? 0;

  tokens.forEach((token, order) => {
    if (token.kind === "open") {
      floors.push({ "*": open["*"].length, _: open._.length, "~": open["~"].length });
    } else if (token.kind === "close") {
      const floor = floors.pop();
      for (const mark of Object.keys(open)) open[mark].length = Math.min(open[mark].length, floor[mark]);
    } else if (token.kind === "run") {
      const stack = open[token.mark];
      const least = token.mark === "~" ? 2 : 1;
      while (token.closes && token.left >= least && stack.length > floorOf(token.mark)) {
        const opener = stack.at(-1);
        const width = Math.min(2, token.left, opener.left);
        opener.starts.push(width);
        opener.left -= width;
        token.ends += 1;
        token.left -= width;
        if (opener.left < least) stack.pop();
        for (const other of stacks) {
          while (other !== stack && other.length && other.at(-1).order > opener.order) other.pop();
        }
      }
      if (token.opens && token.left >= least) {
        token.order = order;
        stack.push(token);
      }
    }
  });
  if (!unfinished) return;
  for (const opener of [...open["*"], ...open["~"]]) {
    if (opener.left < 2) continue;
    opener.starts.push(2);
    opener.left -= 2;
  }
}

function build(parent, tokens) {
  const above = [];
  let here = parent;
  let words = "";
  let inLink = 0;

  const flush = () => {
    if (words) here.append(words);
    words = "";
  };
  const enter = (element) => {
    flush();
    above.push(here);
    if (!element || above.length > DEEPEST) return;
    here.append(element);
    here = element;
  };
  const leave = () => {
    flush();
    here = above.pop();
  };

  for (const token of tokens) {
    if (token.kind === "text") {
      words += token.text;
    } else if (token.kind === "run") {
      for (let count = token.ends; count > 0; count -= 1) leave();
      words += token.mark.repeat(token.left);
      for (const width of token.starts.reverse()) enter(document.createElement(emphasis(token.mark, width)));
    } else if (token.kind === "open") {
      inLink += 1;
      enter(inLink === 1 ? anchor(token) : null);
    } else if (token.kind === "close") {
      leave();
      inLink -= 1;
    } else {
      flush();
      const element = document.createElement(token.kind === "code" ? "code" : "br");
      if (token.kind === "code") element.textContent = token.text;
      here.append(element);
    }
  }
  flush();
}

function emphasis(mark, width) {
  if (mark === "~") return "del";
  return width === 2 ? "strong" : "em";
}

function anchor({ href, image }) {
  const element = document.createElement("a");
  element.href = href;
  element.target = "_blank";
  element.rel = "noopener noreferrer";
  if (image) element.className = "picture";
  return element;
}
