// The chat page: puts the conversation, the composer, the settings and the figures together.

import { ServerError, streamAnswer } from "./completion.js";
import { AnswerView, questionElement } from "./message.js";
import { StatusPanel } from "./status.js";
import {
  loadConversation,
  loadSettings,
  newAnswer,
  saveConversation,
  saveSettings,
} from "./store.js";

const SAVE_EVERY_MS = 500;
const NEAR_END_PX = 80;

const byId = (id) => document.getElementById(id);
const [scroller, log, empty] = [byId("scroller"), byId("log"), byId("empty")];
const [composer, question, send, stop] = ["composer", "question", "send", "stop"].map(byId);
const [panel, panelButton, clear] = [byId("panel"), byId("panel-button"), byId("clear")];
const [settingsBox, settingsForm] = [byId("settings"), byId("settings-form")];

/** @type {import("./store.js").Turn[]} */
let turns = loadConversation();
/** @type {AnswerView[]} */
let views = [];
let settings = loadSettings();
/** The answer that is being written. @type {AbortController | null} */
let running = null;

const status = new StatusPanel({
  apiKey: () => settings.apiKey,
  isBusy: () => running !== null,
  onUnauthorized: () => (settingsBox.open = true),
});

// --- The conversation -------------------------------------------------------------------------

function showConversation() {
  log.replaceChildren();
  views = turns.map(() => new AnswerView(retry));
  turns.forEach((turn, index) => {
    log.append(questionElement(turn.question), views[index].element);
    views[index].show(turn.answer, index === turns.length - 1);
  });
  showEmptiness();
  scrollToEnd();
}

function showEmptiness() {
  empty.hidden = turns.length > 0;
  clear.disabled = turns.length === 0;
}

/** What the model is told: questions that got no answer are no part of it. */
function requestMessages() {
  const messages = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  turns.forEach(({ question: text, answer }, index) => {
    const asks = { role: "user", content: text };
    const calls = answer.toolCalls.map(({ id, name, arguments: json }) => ({
      id,
      type: "function",
      function: { name, arguments: json },
    }));
    if (index === turns.length - 1) messages.push(asks);
    else if (calls.length > 0) {
      messages.push(asks, { role: "assistant", content: answer.content || null, tool_calls: calls });
    } else if (answer.content) messages.push(asks, { role: "assistant", content: answer.content });
  });
  return messages;
}

function requestBody() {
  const body = { messages: requestMessages() };
  if (settings.temperature !== "") body.temperature = Number(settings.temperature);
  if (settings.maxTokens !== "") body.max_completion_tokens = Number(settings.maxTokens);
  return body;
}

async function ask(text) {
  views.at(-1)?.show(turns.at(-1).answer, false);
  const turn = { question: text, answer: newAnswer() };
  const view = new AnswerView(retry);
  turns.push(turn);
  views.push(view);
  log.append(questionElement(text), view.element);
  showEmptiness();
  view.show(turn.answer, true);
  scrollToEnd();
  await write(turn.answer, view);
}

function retry() {
  const { question: text } = turns.pop();
  views.pop().element.remove();
  log.lastElementChild.remove(); // the question, which is asked again
  question.focus();
  ask(text);
}

// --- One answer -------------------------------------------------------------------------------

/** Streams into an answer until it ends, is stopped or fails; then its `ending` is set. */
async function write(answer, view) {
  const controller = new AbortController();
  running = controller;
  showRunning();
  const draw = new Frames(() => following(() => view.show(answer, true)));
  const saving = setInterval(save, SAVE_EVERY_MS);
  const timer = new AnswerTimer();
  try {
    const parts = streamAnswer(requestBody(), {
      apiKey: settings.apiKey,
      signal: controller.signal,
    });
    for await (const part of parts) {
      timer.take(part);
      takePart(answer, part);
      draw.request();
    }
    answer.ending ??= "stop";
  } catch (error) {
    takeFailure(answer, error, controller.signal);
  } finally {
    clearInterval(saving);
    draw.cancel();
    // The conversation may have been cleared meanwhile, and another answer begun.
    if (running === controller) running = null;
  }
  answer.figures = timer.figures();
  following(() => view.show(answer, turns.at(-1)?.answer === answer));
  save();
  showRunning();
  status.refresh();
}

function takePart(answer, { reasoning, content, toolCalls = [], finish }) {
  answer.reasoning += reasoning ?? "";
  answer.content += content ?? "";
  for (const { index, id, function: called } of toolCalls) {
    const call = (answer.toolCalls[index] ??= { id, name: "", arguments: "" });
    call.name += called?.name ?? "";
    call.arguments += called?.arguments ?? "";
  }
  if (finish) answer.ending = finish;
}

function takeFailure(answer, error, signal) {
  if (signal.aborted) {
    answer.ending = "stopped";
    return;
  }
  answer.ending = "failed";
  if (error instanceof ServerError) {
    answer.error = { message: error.message, code: error.code };
    if (error.code === "invalid_api_key") askForKey();
  } else if (error instanceof TypeError) {
    // What fetch throws when there is no connection, or no longer.
    answer.error = { message: "The server cannot be reached", code: null };
  } else {
    answer.error = { message: `The answer cannot be read: ${error.message}`, code: null };
  }
}

/** Time to the first token and tokens per second, as they are seen here. */
class AnswerTimer {
  #started = performance.now();
  #first = null;
  #last = null;
  #usage = null;

  take({ reasoning, content, toolCalls, usage }) {
    if (usage) this.#usage = usage;
    if (!reasoning && !content && !toolCalls) return;
    this.#last = performance.now();
    this.#first ??= this.#last;
  }

  figures() {
    if (this.#first === null) return null;
    const usage = this.#usage; // absent from an answer that was stopped
    const spent = (this.#last - this.#first) / 1000;
    const after = (usage?.completion_tokens ?? 0) - 1;
    return {
      firstTokenMs: this.#first - this.#started,
      tokensPerSecond: after > 0 && spent > 0 ? after / spent : null,
      promptTokens: usage?.prompt_tokens ?? null,
      cachedTokens: usage?.prompt_tokens_details?.cached_tokens ?? null,
      completionTokens: usage?.completion_tokens ?? null,
    };
  }
}

/** Draws at most once a frame. */
class Frames {
  #frame = 0;

  constructor(draw) {
    this.draw = draw;
  }

  request() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.draw();
    });
  }

  cancel() {
    cancelAnimationFrame(this.#frame);
  }
}

// --- The page around it -----------------------------------------------------------------------

/** Changes the log and stays at its end, unless the reader has scrolled up. */
function following(change) {
  const left = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight;
  change();
  if (left < NEAR_END_PX) scrollToEnd();
}

function scrollToEnd() {
  scroller.scrollTop = scroller.scrollHeight;
}

function save() {
  const kept = saveConversation(turns);
  byId("composer-note").textContent = kept
    ? "Enter sends, Shift+Enter adds a line, Esc stops"
    : "The browser has no room to keep this conversation over a reload";
}

function showRunning() {
  const busy = running !== null;
  const hadFocus = document.activeElement === stop;
  stop.hidden = !busy;
  send.hidden = busy;
  if (hadFocus && !busy) question.focus();
  showSendable();
}

function showSendable() {
  send.disabled = question.value.trim() === "";
}

function fitQuestion() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight}px`;
}

function askForKey() {
  settingsBox.open = true;
  setPanel(true);
  settingsForm.elements.apiKey.focus();
}

function setPanel(open) {
  document.body.classList.toggle("panel-open", open);
  panelButton.setAttribute("aria-expanded", String(open));
}

composer.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = question.value.trim();
  if (text === "" || running) return;
  question.value = "";
  fitQuestion();
  setPanel(false);
  ask(text);
  status.refresh();
});

question.addEventListener("input", () => {
  fitQuestion();
  showSendable();
});

question.addEventListener("keydown", (event) => {
  // While an input method composes a character, Enter belongs to it.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  composer.requestSubmit();
});

stop.addEventListener("click", () => running?.abort());

clear.addEventListener("click", () => {
  running?.abort();
  turns = [];
  save();
  showConversation();
  setPanel(false);
  question.focus();
});

panelButton.addEventListener("click", () => setPanel(!document.body.classList.contains("panel-open")));

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing) return;
  if (document.body.classList.contains("panel-open")) {
    setPanel(false);
    panelButton.focus();
  } else {
    running?.abort();
  }
});

for (const [name, value] of Object.entries(settings)) settingsForm.elements[name].value = value;
settingsForm.addEventListener("submit", (event) => event.preventDefault());
settingsForm.addEventListener("change", () => {
  if (!settingsForm.reportValidity()) return;
  const before = settings.apiKey;
  settings = Object.fromEntries(new FormData(settingsForm));
  saveSettings(settings);
  if (settings.apiKey !== before) status.refresh();
});

window.addEventListener("pagehide", () => {
  running?.abort(); // otherwise the end of its connection would look like the server's fault
  save();
});

showConversation();
showSendable();
status.refresh();
