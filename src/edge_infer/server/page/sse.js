// Server-sent events, as the HTML standard defines them ("event stream interpretation").

// A carriage return at the end of what has arrived may be the first half of CR LF.
const LINE_END = /\r\n|\n|\r(?!$)/;

/**
 * The events of a byte stream, as they arrive. Leaving the loop cancels the stream.
 * @param {ReadableStream<Uint8Array>} stream
 * @returns {AsyncGenerator<{event: string, data: string}>}
 */
export async function* readEvents(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder(); // keeps the first bytes of a character that was cut in two
  let text = "";
  let event = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return; // the standard discards an event without its closing blank line
      text += decoder.decode(value, { stream: true });
      for (let end = LINE_END.exec(text); end; end = LINE_END.exec(text)) {
        const line = text.slice(0, end.index);
        text = text.slice(end.index + end[0].length);
        if (line === "") {
          if (data.length > 0) yield { event: event || "message", data: data.join("\n") };
          event = "";
          data = [];
          continue;
        }
        const colon = line.indexOf(":"); // at 0 the line is a comment
        const field = colon < 0 ? line : line.slice(0, colon);
        const content = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (field === "data") data.push(content);
        if (field === "event") event = content;
      }
    }
  } finally {
    // Of a stream that failed this repeats the failure, which read() has already thrown.
    reader.cancel().catch(() => undefined);
  }
}
