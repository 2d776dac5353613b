// Markdown's block structure: from lines of text to paragraphs, headings, lists, quotes, code, tables and rules.
// A block ends where the next begins and is never reopened; every pattern is bounded, so the cost stays linear.

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
const QUOTE = /^ {0,3}> ?/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const MARKER = /^ {0,3}(?:([-*+])|(\d{1,9})([.)]))(?=[ \t]|$)/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const TASK = /^\[([ xX])\][ \t]+/;

// Rules and tables' delimiter rows are short; longer lines are not worth the patterns' time.
const LONGEST_RULE = 1000;
// Each level of quotes and lists is parsed once more: the cost stays linear because the depth is bounded.
const DEEPEST = 12;

/** The blocks in `lines`, each with its `kind` and the `line` where it begins. */
export function parseBlocks(lines, depth = 0) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const block = readBlock(lines, at, depth);
    block.line = at;
    blocks.push(block);
    at = block.next;
  }
  return blocks;
}

function readBlock(lines, at, depth) {
  const line = lines[at];
  return (
    readFence(lines, at) ??
    readHeading(line, at) ??
    (isRule(line) ? { kind: "rule", next: at + 1 } : null) ??
    (depth < DEEPEST ? (readQuote(lines, at, depth) ?? readList(lines, at, depth)) : null) ??
    readTable(lines, at) ??
    readIndentedCode(lines, at) ??
    readParagraph(lines, at, depth)
  );
}

function readFence(lines, at) {
  const open = FENCE.exec(lines[at]);
  if (!open) return null;
  const fence = open[1];
  const info = lines[at].slice(open[0].length).trim();
  if (fence[0] === "`" && info.includes("`")) return null;
  const indent = indentOf(lines[at]);
  const code = [];
  let next = at + 1;
  for (; next < lines.length; next += 1) {
    const close = FENCE.exec(lines[next]);
    if (close && close[1].startsWith(fence) && isBlank(lines[next].slice(close[0].length))) {
      next += 1;
      break;
    }
    code.push(indent ? unindent(lines[next], indent) : lines[next]);
  }
  return { kind: "code", language: info.split(/\s/, 1)[0], text: code.join("\n"), next };
}

function readHeading(line, at) {
  const marks = HEADING.exec(line);
  if (!marks) return null;
  let text = line.slice(marks[0].length).trim();
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  if (end === 0 || /[ \t]/.test(text[end - 1])) text = text.slice(0, end).trimEnd();
  return { kind: "heading", level: marks[1].length, text, next: at + 1 };
}

function isRule(line) {
  return line.length < LONGEST_RULE && RULE.test(line);
}

function readQuote(lines, at, depth) {
  if (!QUOTE.test(lines[at])) return null;
  const inside = [];
  let next = at;
  for (; next < lines.length && !isBlank(lines[next]); next += 1) {
    const mark = QUOTE.exec(lines[next]);
    if (!mark && beginsBlock(lines, next, depth)) break;
    inside.push(mark ? lines[next].slice(mark[0].length) : lines[next]);
  }
  return { kind: "quote", blocks: parseBlocks(inside, depth + 1), next };
}

function readList(lines, at, depth) {
  const first = readMarker(lines[at]);
  if (!first) return null;
  const items = [];
  let loose = false;
  let next = at;
  let marker = first;
  while (marker && marker.sort === first.sort && !isRule(lines[next])) {
    const item = readItem(lines, next, marker, depth);
    items.push(item);
    next = item.next;
    marker = next < lines.length ? readMarker(lines[next]) : null;
    loose ||= item.blankAfter && marker?.sort === first.sort;
  }
  for (const item of items) item.blocks = parseBlocks(item.lines, depth + 1);
  loose ||= items.some((item) => item.blocks.filter((block) => block.kind === "paragraph").length > 1);
  return { kind: "list", ordered: first.number !== null, start: first.number, items, loose, next };
}

function readMarker(line) {
  const found = MARKER.exec(line);
  if (!found) return null;
  const [source, bullet, number, dot] = found;
  return { sort: bullet ?? dot, number: number === undefined ? null : Number(number), width: source.length };
}

/** One item with the lines that belong to it: two columns of indent are enough, as many models write them so. */
function readItem(lines, at, marker, depth) {
  const margin = indentOf(lines[at]) + 2;
  let text = lines[at].slice(marker.width);
  const padding = indentOf(text);
  const inset = marker.width + (padding > 4 || isBlank(text) ? 1 : padding);
  text = unindent(text, inset - marker.width);
  const task = TASK.exec(text);
  if (task) text = text.slice(task[0].length);
  const item = { lines: [text], done: task ? task[1] !== " " : null };
  let blanks = 0;
  let next = at + 1;
  for (; next < lines.length; next += 1) {
    const line = lines[next];
    if (isBlank(line)) {
      blanks += 1;
      continue;
    }
    const belongs = indentOf(line) >= margin;
    const goesOn = blanks === 0 && !beginsBlock(lines, next, depth) && !readMarker(line);
    if (!belongs && !goesOn) break;
    for (; blanks > 0; blanks -= 1) item.lines.push("");
    item.lines.push(belongs ? unindent(line, inset) : line);
  }
  item.blankAfter = blanks > 0;
  item.next = next;
  return item;
}

function readTable(lines, at) {
  if (!beginsTable(lines, at)) return null;
  const aligns = splitCells(lines[at + 1]).map((cell) => alignment(cell));
  const header = splitCells(lines[at]);
  const rows = [];
  let next = at + 2;
  while (next < lines.length && lines[next].includes("|") && !FENCE.test(lines[next])) {
    rows.push(splitCells(lines[next]).slice(0, header.length));
    next += 1;
  }
  return { kind: "table", aligns, header, rows, next };
}

function beginsTable(lines, at) {
  const below = lines[at + 1];
  if (!below?.includes("|") || !lines[at].includes("|")) return false;
  return below.length < LONGEST_RULE && DELIMITERS.test(below);
}

function splitCells(line) {
  let row = line.trim();
  if (row.startsWith("|")) row = row.slice(1);
  const cells = [];
  let cell = "";
  for (const piece of row.split("|")) {
    if (piece.endsWith("\\")) {
      cell += `${piece.slice(0, -1)}|`;
    } else {
      cells.push((cell + piece).trim());
      cell = "";
    }
  }
  if (cell) cells.push(cell.trim());
  else if (cells.length > 1 && cells.at(-1) === "") cells.pop();
  return cells;
}

function alignment(delimiters) {
  if (!delimiters.endsWith(":")) return "";
  return delimiters.startsWith(":") ? "centre" : "right";
}

function readIndentedCode(lines, at) {
  if (indentOf(lines[at]) < 4) return null;
  const code = [];
  let next = at;
  while (next < lines.length && (isBlank(lines[next]) || indentOf(lines[next]) >= 4)) {
    code.push(unindent(lines[next], 4));
    next += 1;
  }
  while (isBlank(code.at(-1))) code.pop();
  return { kind: "code", language: "", text: code.join("\n"), next };
}

function readParagraph(lines, at, depth) {
  const text = [lines[at].trim()];
  let next = at + 1;
  while (next < lines.length && !isBlank(lines[next]) && !beginsBlock(lines, next, depth)) {
    text.push(lines[next].trim());
    next += 1;
  }
  return { kind: "paragraph", text: text.join("\n"), next };
}

/** Whether a paragraph ends before this line. A number other than 1 may just begin a line of prose. */
function beginsBlock(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line) || HEADING.test(line) || isRule(line) || beginsTable(lines, at)) return true;
  if (depth >= DEEPEST) return false;
  if (QUOTE.test(line)) return true;
  const marker = readMarker(line);
  return marker !== null && (marker.number ?? 1) === 1 && !isBlank(line.slice(marker.width));
}

function isBlank(line) {
  return !/\S/.test(line);
}

function indentOf(line) {
  let columns = 0;
  for (const character of line) {
    if (character === " ") columns += 1;
    else if (character === "\t") columns += 4 - (columns % 4);
    else break;
  }
  return columns;
}

function unindent(line, columns) {
  let dropped = 0;
  let at = 0;
  for (; dropped < columns && (line[at] === " " || line[at] === "\t"); at += 1) {
    dropped += line[at] === " " ? 1 : 4 - (dropped % 4);
  }
  return " ".repeat(Math.max(0, dropped - columns)) + line.slice(at);
}
