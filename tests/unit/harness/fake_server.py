"""A stand-in for `edge-infer serve`: real HTTP, made-up answers, faults on demand.

The answer to a prompt depends on the prompt alone. Arguments before "serve": a JSON object with
`forget_done` (streams end without [DONE]), `change_after` (answers change from that request on),
`leak` (KV blocks stay in use), `fail_start` (ends at once), `log` (a file that gets the command).
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

METRICS = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:prefix_cache_hits_total",
)
STATUS = {
    "model": {"weights_formats": {"int4": 7}, "weights_bytes": 1000},
    "kv_cache": {"total_bytes": 2000},
    "runtime": {"isa": "avx2", "threads": 2},
}


class Handler(BaseHTTPRequestHandler):
    """Answers one request and closes."""

    faults: dict[str, Any]
    requests = 0

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Health, status and metrics."""
        if self.path == "/metrics":
            leaked = 0.25 if self.faults.get("leak") else 0.0
            values = {name: leaked if "kv_cache" in name else 0.0 for name in METRICS}
            lines = (f'{name}{{model_name="m"}} {value}' for name, value in values.items())
            self.reply("text/plain", "\n".join(lines).encode())
        elif self.path == "/v1/status":
            self.reply("application/json", json.dumps(STATUS).encode())
        else:
            self.reply("application/json", b"{}")

    def do_POST(self) -> None:
        """A completion or a chat."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Handler.requests += 1
        chat = "messages" in body
        prompt = json.dumps(body["messages"] if chat else body["prompt"])
        words = [hashlib.sha256(f"{prompt} {i}".encode()).hexdigest()[:5] for i in range(200)]
        texts = [f"{word} " for word in words[: body["max_tokens"]]]
        if Handler.requests > self.faults.get("change_after", 1 << 30):
            texts[-1] = "changed"
        count = body.get("n", 1)
        usage = {
            "prompt_tokens": len(body.get("prompt", "chat")),
            "completion_tokens": len(texts) * count,
        }
        choices = [self.choice(i, "".join(texts), "length", "message", chat) for i in range(count)]
        if not body.get("stream"):
            answer = {"choices": choices, "usage": usage}
            self.reply("application/json", json.dumps(answer).encode())
            return
        events: list[Any] = [
            {"choices": [self.choice(i, text, None, "delta", chat)]}
            for text in texts
            for i in range(count)
        ]
        events += [{"choices": [self.choice(i, "", "length", "delta", chat)]} for i in range(count)]
        events.append({"choices": [], "usage": usage})
        data = [f"data: {json.dumps(event)}\n\n" for event in events]
        if not self.faults.get("forget_done"):
            data.append("data: [DONE]\n\n")
        self.reply("text/event-stream", "".join(data).encode())

    @staticmethod
    def choice(
        index: int, text: str, reason: str | None, message: str, chat: bool
    ) -> dict[str, Any]:
        """One choice of an answer or of an event."""
        said: dict[str, Any] = {message: {"content": text}} if chat else {"text": text}
        return {"index": index, **said, "finish_reason": reason}

    def reply(self, kind: str, data: bytes) -> None:
        """Send a whole response; a client that has gone is none of our business."""
        try:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


class Server(ThreadingHTTPServer):
    """Takes many clients at once."""

    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that reset its connection is no fault."""


def main() -> None:
    """Serve until SIGTERM."""
    Handler.faults = json.loads(sys.argv[1])
    port = int(sys.argv[sys.argv.index("--port") + 1])
    if "log" in Handler.faults:
        with open(Handler.faults["log"], "a", encoding="utf-8") as log:
            log.write(" ".join(sys.argv[2:]) + "\n")
    if Handler.faults.get("fail_start"):
        sys.exit("no such model")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    Server(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
