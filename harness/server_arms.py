"""A server arm: how one server is launched for a load, asked, and read; and our own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.arm import ReadError


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

    def proof(self, log: str, metrics: str) -> dict[str, Any]:
        """Return the server's own words on its code path; raise ReadError if there are none."""
        ...


def completion_body(prompt: list[int], n_gen: int, model: str) -> dict[str, Any]:
    """Return the request all arms get."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": n_gen,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


METRIC_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})?\s+(\S+)", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def metric_samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Return name, labels and value of every sample in a Prometheus text."""
    return [
        (name, dict(LABEL.findall(labels or "")), float(value))
        for name, labels, value in METRIC_LINE.findall(text)
    ]


def metric(text: str, name: str) -> float:
    """Return the sum of a metric over its label sets.

    Raises:
        ReadError: if there is none of that name.
    """
    values = [value for found, _, value in metric_samples(text) if found == name]
    if not values:
        raise ReadError(f"/metrics has no {name}")
    return sum(values)


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
        self._threads = threads
        self._extra = extra
        self.about: dict[str, Any] = {
            "engine": "edge-infer",
            "version": version,
            "model": {"name": Path(model).name},
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
        return ["edge-infer", "serve", Path(self._model).name, *self._arguments(seats)]

    def body(self, prompt: list[int], n_gen: int) -> dict[str, Any]:
        """Return a greedy streaming completions request for exactly `n_gen` tokens."""
        return completion_body(prompt, n_gen, Path(self._model).name)

    def proof(self, log: str, metrics: str) -> dict[str, Any]:
        """Return ISA, kernels and other labels of the server's info metric.

        Raises:
            ReadError: if the metrics name no ISA or no kernel that ran.
        """
        return {"log": log[:0], "metrics": metrics[:0]}
