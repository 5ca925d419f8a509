"""A stand-in of the hub on the loopback interface: the endpoints that huggingface_hub calls.

GET /api/models/{id}[/revision/{rev}], GET /api/models/{id}/tree/{rev}, and HEAD or GET
/{id}/resolve/{rev}/{file}; large files are redirected to another host, as to the hub's CDN.
"""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" + "0" * 34
LARGE = (".safetensors", ".gguf", ".bin")


@dataclass
class FakeHub:
    """What the stand-in serves, what it does wrong, and what it was asked.

    Attributes:
        files: content by name; names in LARGE are listed as LFS files.
        served: what is really sent instead of the content.
        cut: remaining cuts by file: how many bytes are sent before the connection drops.
        ranges: whether a Range header is honoured.
        statuses: an error answer (status, X-Error-Code) by beginning of the path.
        requests: (method, path, headers) in order.
    """

    files: dict[str, bytes]
    repo_id: str = "org/tiny"
    served: dict[str, bytes] = field(default_factory=dict)
    cut: dict[str, list[int]] = field(default_factory=dict)
    ranges: bool = True
    statuses: dict[str, tuple[int, str]] = field(default_factory=dict)
    api_body: bytes | None = None
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    port: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def sent(self, method: str, part: str) -> list[dict[str, str]]:
        """Headers of the requests whose path contains `part`."""
        return [headers for m, path, headers in self.requests if m == method and part in path]

    def start(self) -> ThreadingHTTPServer:
        hub = self

        class Handler(_Handler):
            state = hub

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    def entry(self, name: str) -> dict[str, object]:
        content = self.files[name]
        git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry: dict[str, object] = {"size": len(content), "oid": git}
        if name.endswith(LARGE):
            sha256 = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 130}
        return entry

    def etag(self, name: str) -> str:
        entry = self.entry(name)
        lfs = entry.get("lfs")
        return str(lfs["oid"] if isinstance(lfs, dict) else entry["oid"])

    def model_info(self) -> dict[str, object]:
        siblings = []
        for name in self.files:
            entry = self.entry(name)
            sibling: dict[str, object] = {"rfilename": name, "size": entry["size"]}
            sibling["blobId"] = entry["oid"]
            if isinstance(lfs := entry.get("lfs"), dict):
                sibling["lfs"] = {"sha256": lfs["oid"], "size": lfs["size"], "pointerSize": 130}
            siblings.append(sibling)
        return {"_id": "1", "id": self.repo_id, "sha": COMMIT, "siblings": siblings}

    def tree(self) -> list[dict[str, object]]:
        return [{"type": "file", "path": name, **self.entry(name)} for name in self.files]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = self.state
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        hub.requests.append((self.command, path, {k.lower(): v for k, v in self.headers.items()}))
        for start, (status, code) in hub.statuses.items():
            if path.startswith(start):
                self._send(status, b"{}", {"X-Error-Code": code} if code else {})
                return
        api = f"/api/models/{hub.repo_id}"
        resolve = f"/{hub.repo_id}/resolve/"
        if path == api or path.startswith(f"{api}/revision/"):
            self._send(200, hub.api_body or json.dumps(hub.model_info()).encode())
        elif path.startswith(f"{api}/tree/"):
            self._send(200, json.dumps(hub.tree()).encode())
        elif path.startswith(resolve) and path[len(resolve) :].partition("/")[2] in hub.files:
            self._resolve(path[len(resolve) :].partition("/")[2])
        elif path.startswith("/cdn/"):
            self._content(path.removeprefix("/cdn/"), {})
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _resolve(self, name: str) -> None:
        hub = self.state
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hub.etag(name)}"'}
        if name.endswith(LARGE):
            headers["X-Linked-ETag"] = headers.pop("ETag")
            headers["X-Linked-Size"] = str(len(hub.files[name]))
            headers["Location"] = f"http://localhost:{hub.port}/cdn/{name}"
            self._send(302, b"", headers)
        else:
            self._content(name, headers)

    def _content(self, name: str, headers: dict[str, str]) -> None:
        hub = self.state
        body = hub.served.get(name, hub.files[name])
        status = 200
        wanted = self.headers.get("Range") if hub.ranges else None
        if wanted is not None:
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            body, status = body[start:], 206
        cuts = hub.cut.get(name)
        if cuts and self.command == "GET":
            self._send(status, body, headers, limit=cuts.pop(0))
        else:
            self._send(status, body, headers)

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        limit: int | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body[:limit])
        if limit is not None:
            self.close_connection = True
