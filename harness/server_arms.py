"""A server arm: how one server is launched for a load, asked, and read; and our own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.arm import ReadError
from harness.server_process import ServerProcess, get, serving

PROOF_SECONDS = 120.0


@dataclass(frozen=True)
class Seats:
    """What a server is sized for.

    Attributes:
        streams: requests that run at once.
        context_tokens: longest sequence, prompt and output.
    """

    streams: int
    context_tokens: int


class ServerArm(Protocol):
    """One server with its settings. `shown_command` is `command` without this machine's paths."""

    name: str
    ready_path: str
    about: dict[str, Any]

    def command(self, port: int, seats: Seats) -> list[str]:
        """Return the command line that serves on `port`."""
        ...

    def shown_command(self, seats: Seats) -> list[str]:
        """Return the same without paths and port."""
        ...

    def body(self, prompt: list[int], n_gen: int) -> dict[str, Any]:
        """Return a greedy streaming completions request for exactly `n_gen` tokens."""
        ...

    def proof(self, seats: Seats) -> dict[str, Any]:
        """Start it once and return its own words on its code path.

        Raises:
            ReadError: if it says none or another than was asked for.
            ServerError: if it does not start or answer.
        """
        ...


def completion_body(prompt: list[int], n_gen: int, model: str) -> dict[str, Any]:
    """Return the request all arms get.

    top_k is for llama-server, which at temperature 0 would still sort the 40 likeliest tokens.
    """
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": n_gen,
        "temperature": 0,
        "top_k": 1,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


class EdgeInferServe:
    """`edge-infer serve` on whatever a user would type as MODEL.

    Args:
        executable: the command line's first words, for example ["edge-infer"].
        version: commit and state of the work tree the executable was built from.
        extra: more arguments for the server.
    """

    ready_path = "/ready"
    name = "edge-infer"

    def __init__(
        self,
        executable: list[str],
        model: str,
        threads: int,
        version: str,
        extra: list[str],
    ) -> None:
        self._executable = executable
        self._model = model
        self.served_name = Path(model).name
        self._threads = threads
        self._extra = extra
        self.about: dict[str, Any] = {
            "engine": "edge-infer",
            "version": version,
            "model": {"name": self.served_name},
        }

    def _arguments(self, seats: Seats) -> list[str]:
        return [
            *("--threads", str(self._threads)),
            *("--max-num-seqs", str(seats.streams)),
            *("--max-model-len", str(seats.context_tokens)),
            *self._extra,
        ]

    def command(self, port: int, seats: Seats) -> list[str]:
        """Return the command line that serves on `port`."""
        where = ["--host", "127.0.0.1", "--port", str(port)]
        return [*self._executable, "serve", self._model, *where, *self._arguments(seats)]

    def shown_command(self, seats: Seats) -> list[str]:
        """Return the same without paths and port."""
        return ["edge-infer", "serve", self.served_name, *self._arguments(seats)]

    def body(self, prompt: list[int], n_gen: int) -> dict[str, Any]:
        """Return a greedy streaming completions request for exactly `n_gen` tokens."""
        return completion_body(prompt, n_gen, self.served_name)

    def proof(self, seats: Seats) -> dict[str, Any]:
        """Start the server once and return ISA, threads and weight formats as it tells them.

        Raises:
            ReadError: if /v1/status lacks one, or the threads are not those asked for.
            ServerError: if the server does not start.
        """
        with launch(self, seats, PROOF_SECONDS) as server:
            status, text = get(server.port, "/v1/status")
        if status != 200:
            raise ReadError(f"no path proof: /v1/status answers {status}: {text[:200]}")
        return read_status(text, self._threads)


@contextmanager
def launch(
    arm: ServerArm, seats: Seats, timeout_seconds: float, extra: Sequence[str] = ()
) -> Iterator[ServerProcess]:
    """Run an arm's server on a free port.

    Raises:
        ServerError: if it is not ready within `timeout_seconds`.
    """
    with serving(
        lambda port: [*arm.command(port, seats), *extra], arm.ready_path, timeout_seconds
    ) as server:
        yield server


def read_status(text: str, threads: int) -> dict[str, Any]:
    """Return the proof in the text of our /v1/status.

    Raises:
        ReadError: if a part is missing or another number of threads ran.
    """
    try:
        status = json.loads(text)
        proof = {
            "isa": status["runtime"]["isa"],
            "threads": status["runtime"]["threads"],
            "weights_formats": status["model"]["weights_formats"],
            "weights_bytes": status["model"]["weights_bytes"],
            "kv_bytes": status["kv_cache"]["total_bytes"],
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ReadError(f"no path proof in /v1/status: {error!r}") from error
    if not proof["isa"] or not proof["weights_formats"]:
        raise ReadError(f"no path proof: /v1/status says {proof}")
    if proof["threads"] != threads:
        raise ReadError(f"threads is {proof['threads']}, asked for {threads}")
    return proof
