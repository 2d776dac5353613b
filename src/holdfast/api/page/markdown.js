// Markdown as DOM nodes, made by createElement and text nodes alone: nothing here parses HTML. A block is final once
// the next has begun, so an answer that grows only ever renders its last block again.

import { parseBlocks } from "./blocks.js";
import { renderInline } from "./inline.js";

/** Append finished Markdown to `parent`. */
export function renderMarkdown(parent, text) {
  const markdown = new Markdown(parent);
  markdown.append(text);
  markdown.finish();
}

/** Markdown that grows: `append` is free, `render` costs as much as the last block is long. */
export class Markdown {
  #parent;
  #tail = ""; // the source of the blocks that may still change; what lies before them is final
  #live = []; // the nodes of those blocks
  source = "";

  constructor(parent) {
    this.#parent = parent;
  }

  append(text) {
    const clean = text.replaceAll("\r", "");
    this.source += clean;
    this.#tail += clean;
  }

  render() {
    this.#render(true);
  }

  finish() {
    this.#render(false);
  }

  #render(unfinished) {
    const lines = this.#tail.split("\n");
    const blocks = parseBlocks(lines);
    if (!blocks.length || this.#growCode(blocks)) return;
    // What a line begins is certain only when it and the next are complete: "#" may yet become "#tag".
    let settled = blocks.length - 1;
    while (settled > 0 && blocks[settled].line > lines.length - 3) settled -= 1;
    const nodes = renderAll(blocks, unfinished);
    for (const node of this.#live) node.remove();
    this.#live = [...nodes.childNodes].slice(settled);
    this.#parent.append(nodes);
    this.#tail = lines.slice(blocks[settled].line).join("\n");
  }

  /** A code block that only got longer keeps its node, and with it the reader's selection and scroll position. */
  #growCode(blocks) {
    const [node] = this.#live;
    const [block] = blocks;
    if (blocks.length > 1 || this.#live.length !== 1 || block.kind !== "code" || !node.matches(".code")) return false;
    const shown = node.querySelector("code").firstChild;
    if (node.querySelector("span").textContent !== labelOf(block) || !block.text.startsWith(shown.data)) return false;
    shown.appendData(block.text.slice(shown.data.length));
    return true;
  }
}

function element(name, className = "") {
  const node = document.createElement(name);
  if (className) node.className = className;
  return node;
}

function render(block, unfinished) {
  switch (block.kind) {
    case "code":
      return renderCode(block);
    case "list":
      return renderList(block, unfinished);
    case "table":
      return renderTable(block, unfinished);
    case "quote": {
      const node = element("blockquote");
      node.append(renderAll(block.blocks, unfinished));
      return node;
    }
    case "rule":
      return element("hr");
    default: {
      // The page itself has the first level of headings.
      const node = element(block.kind === "heading" ? `h${Math.min(block.level + 1, 6)}` : "p");
      renderInline(node, block.text, unfinished);
      return node;
    }
  }
}

function renderAll(blocks, unfinished) {
  const nodes = document.createDocumentFragment();
  blocks.forEach((block, index) => nodes.append(render(block, unfinished && index === blocks.length - 1)));
  return nodes;
}

function labelOf({ language }) {
  return language || "text";
}

function renderCode(block) {
  const figure = element("figure", "code");
  const caption = element("figcaption");
  const label = element("span");
  label.textContent = labelOf(block);
  const copy = element("button", "copy");
  copy.type = "button";
  copy.textContent = "Copy";
  caption.append(label, copy);
  const pre = element("pre");
  pre.tabIndex = 0;
  const code = element("code");
  code.append(document.createTextNode(block.text));
  pre.append(code);
  figure.append(caption, pre);
  return figure;
}

function renderList({ ordered, start, items, loose }, unfinished) {
  const list = element(ordered ? "ol" : "ul");
  if (ordered && start !== 1) list.start = start;
  items.forEach((item, index) => {
    const node = element("li");
    if (item.done !== null) {
      node.className = "task";
      const box = element("input");
      box.type = "checkbox";
      box.checked = item.done;
      box.disabled = true;
      box.ariaLabel = item.done ? "Done" : "To do";
      node.append(box);
    }
    const growing = unfinished && index === items.length - 1;
    item.blocks.forEach((block, position) => {
      const last = growing && position === item.blocks.length - 1;
      if (block.kind === "paragraph" && !loose) renderInline(node, block.text, last);
      else node.append(render(block, last));
    });
    list.append(node);
  });
  return list;
}

function renderTable({ aligns, header, rows }, unfinished) {
  const frame = element("div", "table");
  frame.tabIndex = 0;
  const table = element("table");
  const row = (cells, name, growing) => {
    const line = element("tr");
    cells.forEach((text, column) => {
      const cell = element(name, aligns[column]);
      if (name === "th") cell.scope = "col";
      renderInline(cell, text, growing && column === cells.length - 1);
      line.append(cell);
    });
    return line;
  };
  const head = element("thead");
  head.append(row(header, "th", false));
  const body = element("tbody");
  rows.forEach((cells, index) => body.append(row(cells, "td", unfinished && index === rows.length - 1)));
  table.append(head, body);
  frame.append(table);
  return frame;
}
