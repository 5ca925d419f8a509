// The figures of /v1/status, read gently: often while an answer is written, seldom otherwise, never
// while nobody looks.

import { requestHeaders, responseError } from "./completion.js";
import { bytes, count } from "./format.js";

const BUSY_MS = 1000;
const IDLE_MS = 10_000;

export class StatusPanel {
  /**
   * @param {{apiKey: () => string, isBusy: () => boolean, onUnauthorized: () => void}} hooks
   */
  constructor(hooks) {
    this.hooks = hooks;
    this.timer = 0;
    this.reading = false;
    this.problem = document.getElementById("status-problem");
    document.addEventListener("visibilitychange", () => this.refresh());
  }

  /** Reads the figures now and from then on by itself. */
  async refresh() {
    clearTimeout(this.timer);
    if (document.hidden || this.reading) return;
    this.reading = true;
    try {
      await this.#read();
    } finally {
      this.reading = false;
      this.timer = setTimeout(() => this.refresh(), this.hooks.isBusy() ? BUSY_MS : IDLE_MS);
    }
  }

  async #read() {
    let response;
    try {
      response = await fetch("v1/status", {
        headers: requestHeaders(this.hooks.apiKey()),
        cache: "no-store",
      });
    } catch {
      this.#tell("The server cannot be reached");
      return;
    }
    if (response.ok) {
      showStatus(await response.json());
      this.#tell("");
      return;
    }
    this.#tell((await responseError(response)).message);
    if (response.status === 401) this.hooks.onUnauthorized();
  }

  #tell(problem) {
    if (this.problem.textContent !== problem) this.problem.textContent = problem;
    this.problem.hidden = problem === "";
  }
}

function showStatus({ model, kv_cache: kv, memory, requests, runtime }) {
  document.title = model.id;
  const formats = Object.keys(model.weights_formats).join(", ");
  const threads = runtime.threads === 1 ? "1 thread" : `${runtime.threads} threads`;
  put("model", model.id);
  put("model-note", `${formats} · context ${count(model.max_model_len)} · ${runtime.isa}, ${threads}`);
  put("weights", bytes(model.weights_bytes));
  put("kv", `${bytes(kv.used_bytes)} of ${bytes(kv.total_bytes)}`);
  document.querySelector("[data-gauge=kv]").style.setProperty("--share", kv.usage);
  put("pss", memory ? bytes(memory.pss_bytes) : "not known");
  put("pss-file", memory ? bytes(memory.file_bytes) : "not known");
  put("pss-anonymous", memory ? bytes(memory.anonymous_bytes) : "not known");
  put("running", count(requests.running));
  put("waiting", count(requests.waiting));
}

function put(name, text) {
  for (const element of document.querySelectorAll(`[data-figure=${name}]`)) {
    element.textContent = text;
  }
}
