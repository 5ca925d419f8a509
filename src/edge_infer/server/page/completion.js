// One streamed answer of /v1/chat/completions.

import { readEvents } from "./sse.js";

/** What the server refused or could not finish, in its own words. */
export class ServerError extends Error {
  /**
   * @param {string} message
   * @param {string | null} code the server's error code, or the HTTP status
   */
  constructor(message, code = null) {
    super(message);
    this.name = "ServerError";
    this.code = code;
  }
}

/** Headers for the server's API, with the key if there is one. */
export function requestHeaders(apiKey) {
  return apiKey ? { authorization: `Bearer ${apiKey}` } : {};
}

/** The error that an unsuccessful response stands for. */
export async function responseError(response) {
  const text = await response.text();
  try {
    return errorFrom(JSON.parse(text).error, response.status);
  } catch {
    // Not ours, so perhaps a proxy's: its status says more than its page.
    return new ServerError(`The server answered ${response.status} ${response.statusText}`.trim());
  }
}

/**
 * Asks for an answer and yields its parts as they come.
 * @param {object} request body of the request, without the streaming fields
 * @param {{apiKey: string, signal: AbortSignal}} options
 * @returns {AsyncGenerator<{reasoning?: string, content?: string, toolCalls?: object[],
 *   finish?: string, usage?: object}>}
 */
export async function* streamAnswer(request, { apiKey, signal }) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", ...requestHeaders(apiKey) },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw await responseError(response);
  for await (const { data } of readEvents(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw errorFrom(chunk.error, null);
    if (chunk.usage) yield { usage: chunk.usage };
    for (const { delta = {}, finish_reason: finish } of chunk.choices ?? []) {
      const reasoning = delta.reasoning_content ?? delta.reasoning;
      if (reasoning) yield { reasoning };
      if (delta.content) yield { content: delta.content };
      if (delta.tool_calls) yield { toolCalls: delta.tool_calls };
      if (finish) yield { finish };
    }
  }
  throw new ServerError("The connection ended before the answer did");
}

function errorFrom(error, status) {
  return new ServerError(error.message, error.code ?? error.type ?? (status && String(status)));
}
