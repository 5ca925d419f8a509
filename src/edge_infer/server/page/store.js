// What this browser keeps: the conversation and the settings. The API key goes with the tab.

const CONVERSATION = "edge-infer.conversation";
const SETTINGS = "edge-infer.settings";
const API_KEY = "edge-infer.api-key";

/**
 * A question and what came of it.
 * @typedef {object} Turn
 * @property {string} question
 * @property {Answer} answer
 *
 * @typedef {object} Answer
 * @property {string} reasoning
 * @property {string} content
 * @property {{id: string, name: string, arguments: string}[]} toolCalls
 * @property {string | null} ending "stop", "length", "tool_calls" as the server says it;
 *   "stopped" by the user; "failed"; null while it is being written
 * @property {{message: string, code: string | null} | null} error
 * @property {object | null} figures
 */

/** @returns {Answer} */
export function newAnswer() {
  return { reasoning: "", content: "", toolCalls: [], ending: null, error: null, figures: null };
}

/** @returns {Turn[]} */
export function loadConversation() {
  const turns = read("localStorage", CONVERSATION, []);
  for (const { answer } of turns) {
    answer.ending ??= "stopped"; // it was being written when the page went away
  }
  return turns;
}

/**
 * Keeps the conversation; an empty one is forgotten.
 * @param {Turn[]} turns
 * @returns {boolean} whether the browser kept it
 */
export function saveConversation(turns) {
  return write("localStorage", CONVERSATION, turns.length > 0 ? turns : null);
}

export function loadSettings() {
  const settings = { system: "", temperature: "0.7", maxTokens: "" };
  return {
    ...settings,
    ...read("localStorage", SETTINGS, {}),
    apiKey: read("sessionStorage", API_KEY, ""),
  };
}

export function saveSettings({ apiKey, ...settings }) {
  write("localStorage", SETTINGS, settings);
  write("sessionStorage", API_KEY, apiKey || null);
}

function read(storage, key, otherwise) {
  const text = stored(storage)?.getItem(key) ?? null;
  return text === null ? otherwise : JSON.parse(text);
}

function write(storage, key, value) {
  const kept = stored(storage);
  try {
    if (value === null) kept?.removeItem(key);
    else kept?.setItem(key, JSON.stringify(value));
    return kept !== null;
  } catch (error) {
    if (error.name === "QuotaExceededError") return false;
    throw error;
  }
}

/** The storage of that name; null where the browser's settings forbid it. */
function stored(name) {
  try {
    return window[name];
  } catch {
    return null;
  }
}
