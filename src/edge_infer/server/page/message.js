// The messages of the conversation as elements.

import { count, rate, seconds } from "./format.js";
import { showMarkdown } from "./markdown.js";

/** A question, as it was typed. */
export function questionElement(text) {
  const article = element("article", "question");
  article.append(hidden("You: "), text);
  return article;
}

/** An answer; call `show` whenever it has changed. */
export class AnswerView {
  /** @param {() => void} onRetry */
  constructor(onRetry) {
    this.element = element("article", "answer");
    this.reasoning = element("details", "reasoning");
    this.reasoningTitle = element("summary");
    this.reasoningText = element("div", "prose");
    this.reasoning.append(this.reasoningTitle, this.reasoningText);
    this.content = element("div", "prose");
    this.toolCalls = element("div", "tool-calls");
    this.waiting = element("p", "waiting");
    this.waiting.append(hidden("Waiting for the first token"), ...[1, 2, 3].map(() => element("i")));
    this.error = element("div", "problem");
    this.error.setAttribute("role", "alert");
    this.foot = element("footer", "answer-foot");
    this.figures = element("span", "answer-figures");
    this.retry = element("button", "text-button");
    this.retry.type = "button";
    this.retry.append("Try again");
    this.retry.addEventListener("click", onRetry);
    this.foot.append(this.figures, this.retry);
    this.element.append(
      hidden("Answer: "),
      this.waiting,
      this.reasoning,
      this.content,
      this.toolCalls,
      this.error,
      this.foot,
    );
  }

  /**
   * @param {import("./store.js").Answer} answer
   * @param {boolean} isLast whether it can be asked for again
   */
  show(answer, isLast) {
    const writing = answer.ending === null;
    const empty = !answer.content && !answer.reasoning && answer.toolCalls.length === 0;
    // A screen reader waits for the end and then reads the answer once.
    this.element.setAttribute("aria-busy", String(writing));
    this.waiting.hidden = !(writing && empty);

    this.reasoning.hidden = !answer.reasoning;
    const thinking = writing && !answer.content && answer.toolCalls.length === 0;
    this.reasoningTitle.textContent = thinking ? "Thinking…" : "Thoughts";
    showMarkdown(this.reasoningText, answer.reasoning);

    showMarkdown(this.content, answer.content);
    this.content.classList.toggle("writing", writing && Boolean(answer.content));
    this.toolCalls.replaceChildren(...answer.toolCalls.map(toolCallElement));

    this.error.hidden = !answer.error;
    this.error.replaceChildren();
    if (answer.error) {
      const { message, code } = answer.error;
      this.error.append(element("p", "", message));
      if (ADVICE[code]) this.error.append(element("p", "", ADVICE[code]));
      if (code) this.error.append(element("code", "", code));
    }

    this.figures.textContent = writing ? "" : figuresText(answer);
    this.retry.hidden = writing || !isLast;
    this.foot.hidden = writing || (!isLast && !this.figures.textContent);
  }
}

function toolCallElement({ name, arguments: text }) {
  const figure = element("figure", "tool-call");
  const caption = element("figcaption", "", "Calls ");
  caption.append(element("code", "", name));
  const pre = element("pre", "", readableJson(text));
  pre.tabIndex = 0;
  figure.append(caption, pre);
  return figure;
}

/** Indented when it is complete JSON, as it came while it still grows. */
function readableJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** What the reader can do about an error, by its code. */
const ADVICE = {
  context_length_exceeded: "Clear the conversation to begin anew, or ask for less.",
  invalid_api_key: "Enter the server's API key in the settings, then try again.",
  queue_full: "The server is busy. Try again in a moment.",
};

const ENDINGS = { stopped: "stopped", length: "reached the longest answer" };

function figuresText({ ending, figures }) {
  const parts = [];
  if (figures?.firstTokenMs != null) parts.push(`first token ${seconds(figures.firstTokenMs)}`);
  if (figures?.tokensPerSecond) parts.push(`${rate(figures.tokensPerSecond)} tokens/s`);
  if (figures?.completionTokens != null) {
    const cached = figures.cachedTokens ? ` (${count(figures.cachedTokens)} cached)` : "";
    parts.push(`${count(figures.promptTokens)} tokens in${cached}, ${count(figures.completionTokens)} out`);
  }
  if (ENDINGS[ending]) parts.push(ENDINGS[ending]);
  return parts.join(" · ");
}

function hidden(text) {
  return element("span", "hidden", text);
}

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(text);
  return made;
}
