// The Markdown that models write, as DOM nodes. Text from a model becomes text nodes and nothing
// else: no markup of its own, no image, no address but http and https.

const FENCE = /^ {0,3}(`{3,}(?!.*`)|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const LONGEST_LINK = 2000;
const DEEPEST = 8;

/** What each shown block was made from. @type {WeakMap<Element, string>} */
const sources = new WeakMap();

/**
 * Shows Markdown in an element. Blocks that did not change since the last call stay as they are,
 * so that a growing answer costs little and a selection in it survives.
 * @param {HTMLElement} element
 * @param {string} text
 */
export function showMarkdown(element, text) {
  const blocks = splitBlocks(text.split("\n"));
  const shown = element.children;
  blocks.forEach((block, index) => {
    const source = `${block.kind}\n${block.lines.join("\n")}`;
    const old = shown[index];
    if (old && sources.get(old) === source) return;
    const fresh = renderBlock(block, 0);
    sources.set(fresh, source);
    if (old) old.replaceWith(fresh);
    else element.append(fresh);
  });
  while (shown.length > blocks.length) shown[shown.length - 1].remove();
}

function splitBlocks(lines) {
  const blocks = [];
  let index = 0;
  while (index < lines.length) {
    if (lines[index].trim() === "") {
      index += 1;
      continue;
    }
    const block = takeBlock(lines, index);
    blocks.push(block);
    index = block.next;
  }
  return blocks;
}

/** The block that begins at a line which is not blank. */
function takeBlock(lines, first) {
  const line = lines[first];
  const fence = FENCE.exec(line);
  if (fence) return takeCode(lines, first, fence);
  if (HEADING.test(line)) return block("heading", lines, first, first + 1);
  if (RULE.test(line)) return block("rule", lines, first, first + 1);
  if (isTable(lines, first)) {
    return block("table", lines, first, takeWhile(lines, first, (l) => l.includes("|")));
  }
  if (line.startsWith(">")) {
    return block("quote", lines, first, takeWhile(lines, first, (l) => l.startsWith(">")));
  }
  if (ITEM.test(line)) return takeList(lines, first);
  let next = first + 1;
  while (next < lines.length && lines[next].trim() !== "" && !interrupts(lines, next)) next += 1;
  return block("paragraph", lines, first, next);
}

function block(kind, lines, first, next) {
  return { kind, lines: lines.slice(first, next), next };
}

function takeWhile(lines, first, belongs) {
  let next = first;
  while (next < lines.length && belongs(lines[next])) next += 1;
  return next;
}

function takeCode(lines, first, [, mark, language]) {
  const closes = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}\\s*$`);
  const indent = /^ */.exec(lines[first])[0].length;
  let next = first + 1;
  while (next < lines.length && !closes.test(lines[next])) next += 1;
  const code = lines.slice(first + 1, next).map((l) => l.replace(new RegExp(`^ {0,${indent}}`), ""));
  return { kind: "code", lines: [language, ...code], next: Math.min(next + 1, lines.length) };
}

/** A list goes on over blank lines as long as what follows is an item or is indented. */
function takeList(lines, first) {
  const ordered = /\d/.test(ITEM.exec(lines[first])[2]);
  const indent = ITEM.exec(lines[first])[1].length;
  let next = first + 1;
  while (next < lines.length) {
    const line = lines[next];
    if (line.trim() === "") {
      const after = lines.findIndex((l, i) => i > next && l.trim() !== "");
      if (after < 0 || !continuesList(lines[after], indent, ordered)) break;
      next = after;
      continue;
    }
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent && /\d/.test(item[2]) !== ordered) break;
    if (!item && interrupts(lines, next) && !line.startsWith(" ")) break;
    next += 1;
  }
  return block("list", lines, first, next);
}

function continuesList(line, indent, ordered) {
  const item = ITEM.exec(line);
  if (item && item[1].length <= indent) return /\d/.test(item[2]) === ordered;
  return /^ */.exec(line)[0].length > indent;
}

function isTable(lines, index) {
  const rule = lines[index + 1];
  return lines[index].includes("|") && rule !== undefined && rule.includes("-") && TABLE_RULE.test(rule);
}

function interrupts(lines, index) {
  const line = lines[index];
  return (
    FENCE.test(line) ||
    HEADING.test(line) ||
    RULE.test(line) ||
    ITEM.test(line) ||
    line.startsWith(">") ||
    isTable(lines, index)
  );
}

function renderBlock({ kind, lines }, depth) {
  switch (kind) {
    case "code":
      return renderCode(lines[0], lines.slice(1).join("\n"));
    case "heading": {
      const [, marks, title] = HEADING.exec(lines[0]);
      // The page has its own h1 and h2.
      return withInline(`h${Math.min(marks.length + 2, 6)}`, title.replace(/\s#+\s*$/, ""));
    }
    case "rule":
      return document.createElement("hr");
    case "table":
      return renderTable(lines);
    case "quote":
      return withBlocks("blockquote", lines.map((l) => l.replace(/^> ?/, "")), depth);
    case "list":
      return renderList(lines, depth);
    default:
      return withInline("p", lines.map((l) => l.trimStart()).join("\n"));
  }
}

function renderCode(language, code) {
  const figure = document.createElement("figure");
  figure.className = "code";
  const bar = document.createElement("figcaption");
  bar.append(language || "text");
  const pre = document.createElement("pre");
  pre.tabIndex = 0; // so that the keyboard can scroll it
  const element = document.createElement("code");
  element.append(code);
  pre.append(element);
  if (navigator.clipboard) bar.append(copyButton(code)); // it is absent without TLS
  figure.append(bar, pre);
  return figure;
}

function copyButton(text) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "text-button";
  button.append("Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "The browser refused"; // its permission, or the tab has no focus
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

function renderTable(lines) {
  const scroller = document.createElement("div");
  scroller.className = "table-scroller";
  const table = document.createElement("table");
  const [heads, ...rows] = lines.filter((_, index) => index !== 1).map(cells);
  const head = table.createTHead().insertRow();
  for (const text of heads) {
    const cell = withInline("th", text);
    cell.scope = "col";
    head.append(cell);
  }
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (let i = 0; i < heads.length; i += 1) line.append(withInline("td", row[i] ?? ""));
  }
  scroller.append(table);
  return scroller;
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function renderList(lines, depth) {
  const [, margin, mark] = ITEM.exec(lines[0]);
  const ordered = /\d/.test(mark);
  const list = document.createElement(ordered ? "ol" : "ul");
  if (ordered) list.start = Number.parseInt(mark, 10);
  let item = null;
  const close = () => item && list.append(withBlocks("li", item, depth));
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= margin.length) {
      close();
      item = [found[3]];
    } else {
      const indent = /^ */.exec(line)[0].length;
      item.push(line.slice(Math.min(indent, margin.length + mark.length + 1)));
    }
  }
  close();
  return list;
}

/** An element with Markdown blocks in it; a single paragraph gets no element of its own. */
function withBlocks(tag, lines, depth) {
  if (depth >= DEEPEST) return withInline(tag, lines.join("\n"));
  const element = document.createElement(tag);
  for (const inner of splitBlocks(lines)) {
    const rendered = renderBlock(inner, depth + 1);
    if (inner.kind === "paragraph" && tag === "li") element.append(...rendered.childNodes);
    else element.append(rendered);
  }
  return element;
}

function withInline(tag, text) {
  const element = document.createElement(tag);
  appendInline(element, text);
  return element;
}

const EMPHASIS = [
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "del"],
  ["*", "em"],
  ["_", "em"],
];

/**
 * Appends text with its inline markup. Every search for a closing mark either consumes what it
 * finds or shows that there is none further on, so the time is linear for each kind of mark.
 */
function appendInline(element, text) {
  const absent = new Set();
  const find = (mark, from) => {
    if (absent.has(mark)) return -1;
    const found = text.indexOf(mark, from);
    if (found < 0) absent.add(mark);
    return found;
  };
  let plain = 0;
  let index = 0;
  const put = (node, next) => {
    element.append(text.slice(plain, index), node);
    plain = index = next;
  };
  while (index < text.length) {
    const char = text[index];
    if (char === "\\" && /[\\`*_~[\]()#+.!|<>{}-]/.test(text[index + 1] ?? "")) {
      put(text[index + 1], index + 2);
    } else if (char === "\n") {
      put(document.createElement("br"), index + 1);
    } else if (char === "`") {
      const mark = /^`+/.exec(text.slice(index, index + 16))[0];
      const end = find(mark, index + mark.length);
      if (end < 0) {
        index += mark.length;
        continue;
      }
      const code = document.createElement("code");
      code.append(text.slice(index + mark.length, end).replaceAll("\n", " "));
      put(code, end + mark.length);
    } else if (char === "[") {
      const link = takeLink(text, index);
      if (link) put(link.node, link.next);
      else index += 1;
    } else if (char === "*" || char === "_" || char === "~") {
      const found = takeEmphasis(text, index, find);
      if (found) put(withInline(found.tag, found.inner), found.next);
      else index += 1;
    } else {
      index += 1;
    }
  }
  element.append(text.slice(plain));
}

function takeEmphasis(text, index, find) {
  for (const [mark, tag] of EMPHASIS) {
    if (!text.startsWith(mark, index)) continue;
    const start = index + mark.length;
    if (/\s/.test(text[start] ?? " ")) return null;
    // snake_case is a word
    if (mark[0] === "_" && /\w/.test(text[index - 1] ?? " ")) return null;
    let end = find(mark, start + 1);
    // The "**" within "*one **two** three*" closes nothing.
    while (mark.length === 1 && end >= 0 && text[end + 1] === mark) end = find(mark, end + 2);
    if (end < 0 || /\s/.test(text[end - 1])) continue;
    if (mark[0] === "_" && /\w/.test(text[end + mark.length] ?? " ")) continue;
    return { tag, inner: text.slice(start, end), next: end + mark.length };
  }
  return null;
}

function takeLink(text, index) {
  const near = text.slice(index, index + LONGEST_LINK);
  const match = /^\[([^[\]]+)\]\(\s*(https?:\/\/[^\s()<>]+(?:\([^\s()<>]*\)[^\s()<>]*)*)\s*\)/.exec(near);
  if (!match) return null;
  const node = withInline("a", match[1]);
  node.href = match[2];
  node.target = "_blank";
  node.rel = "noopener noreferrer";
  return { node, next: index + match[0].length };
}
