"""What a server costs that has nothing to do: start, memory beside weights and KV cache, CPU.

    python -m harness.idle_server NAME --model smollm2-135m

Starts the server several times for the median time to /ready; the last one is measured idle, once
as it came up and once after it has answered a few chats. Writes
results/<machine>/servers/NAME.json and NAME.md; the exit status is 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.arm import ReadError
from harness.comparison import MIB
from harness.http_client import ResponseError, exchange
from harness.machine import load_now, others_share, steal_share
from harness.mappings import is_kv, is_weights, kv_pss_bytes, mappings_of, weights_pss_bytes
from harness.memory import process_tree
from harness.replies import read_whole
from harness.report_file import REPOSITORY, provenance, report_path, version, write_report
from harness.server_process import HOST, ServerError, ServerProcess, get, serving
from harness.soak_traffic import CHAT
from harness.traffic import encode

SCHEMA_VERSION = 1
READY_PATH = "/ready"
READY_SECONDS = 120.0
REQUEST_SECONDS = 300.0
SETTLE_SECONDS = 2.0
CHATS = 4  # at once, before the second reading
CHAT_TOKENS = 64
MAX_READY_MS = 1500.0
MAX_BEYOND_BYTES = 150e6
MAX_CPU_SHARE = 0.01


@dataclass(frozen=True)
class PlainServe:
    """`edge-infer serve MODEL` with nothing set but what is asked for.

    Attributes:
        executable: the command line's first words.
    """

    executable: list[str]
    model: str
    extra: list[str]

    def command(self, port: int) -> list[str]:
        """Return the command line that serves on `port`."""
        return [*self.executable, "serve", self.model, "--port", str(port), *self.extra]

    def shown_command(self) -> list[str]:
        """Return the same without paths and port."""
        return ["edge-infer", "serve", Path(self.model).name, *self.extra]


@dataclass(frozen=True)
class Idle:
    """A server that did nothing for a while; memory in bytes of PSS over the process tree.

    Attributes:
        weights_bytes: mapped weight files, what of them is in memory.
        kv_bytes: the KV cache, what of it was touched; 0 as the server comes up.
        beyond_bytes: all but these two.
        beyond_rss_bytes: the same in RSS: what it is when no other process shares a library.
        cpu_share: CPU time over wall time, 1 being one core; `cpu_seconds` has clock ticks.
        steal, others: shares of all CPU time that the hypervisor and other processes took.
    """

    seconds: float
    anonymous_bytes: int
    file_bytes: int
    shared_bytes: int
    weights_bytes: int
    kv_bytes: int
    beyond_bytes: int
    beyond_rss_bytes: int
    cpu_seconds: float
    cpu_share: float
    steal: float
    others: float


def measure_idle(server: ServerProcess, seconds: float) -> Idle:
    """Watch the server for some seconds, then read its memory; OSError when it is gone."""
    time.sleep(SETTLE_SECONDS)
    before, cpu, began = load_now(), server.cpu_seconds(), time.perf_counter()
    time.sleep(seconds)
    cpu, wall, after = server.cpu_seconds() - cpu, time.perf_counter() - began, load_now()
    pss = server.pss()
    mappings = [one for pid in process_tree(server.pid) for one in mappings_of(pid)]
    weights, kv = weights_pss_bytes(mappings), kv_pss_bytes(mappings)
    return Idle(
        seconds=round(wall, 2),
        anonymous_bytes=pss.anonymous_bytes,
        file_bytes=pss.file_bytes,
        shared_bytes=pss.shared_bytes,
        weights_bytes=weights,
        kv_bytes=kv,
        beyond_bytes=pss.total_bytes - weights - kv,
        beyond_rss_bytes=sum(
            one.rss_bytes for one in mappings if not is_weights(one) and not is_kv(one)
        ),
        cpu_seconds=cpu,
        cpu_share=cpu / wall,
        steal=steal_share(before, after),
        others=others_share(before, after, cpu),
    )


async def chat(port: int) -> None:
    """Let the server answer a few chats at once.

    Raises:
        ResponseError: if one is not answered.
    """
    body = {"max_tokens": CHAT_TOKENS, "messages": [{"role": "user", "content": "Hello!"}]}
    request = encode(port, body, CHAT)
    asked = (exchange(HOST, port, request, timeout_seconds=REQUEST_SECONDS) for _ in range(CHATS))
    for done in await asyncio.gather(*asked):
        read_whole(done)


def read_model(port: int) -> dict[str, Any]:
    """Return model, KV cache and runtime as /v1/status tells them.

    Raises:
        ReadError: if it does not.
    """
    status, text = get(port, "/v1/status")
    try:
        told = json.loads(text)
        return {name: told[name] for name in ("model", "kv_cache", "runtime")}
    except (ValueError, KeyError, TypeError) as error:
        raise ReadError(f"/v1/status answers {status}: {text[:200]}") from error


def missed_targets(ready_ms: float, states: dict[str, Idle]) -> list[str]:
    """Return a sentence for each target that was missed."""
    missed = []
    if ready_ms > MAX_READY_MS:
        missed.append(f"ready after {ready_ms:.0f} ms, target {MAX_READY_MS:.0f}")
    for name, idle in states.items():
        if idle.beyond_bytes > MAX_BEYOND_BYTES:
            mb, most = idle.beyond_bytes / 1e6, MAX_BEYOND_BYTES / 1e6
            missed.append(f"{name}: {mb:.0f} MB beyond weights and KV, target {most:.0f}")
        if idle.cpu_share >= MAX_CPU_SHARE:
            missed.append(f"{name}: {idle.cpu_share:.1%} CPU, target below {MAX_CPU_SHARE:.0%}")
    return missed


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure a server and return the report.

    Raises:
        ServerError, ReadError, ResponseError: if it does not start, tell or answer.
    """
    report = provenance("idle_server", SCHEMA_VERSION, options.name, options.note)
    arm = PlainServe(
        shlex.split(options.edge_infer), options.model, shlex.split(options.edge_infer_extra)
    )
    ready_ms: list[float] = []
    for _ in range(options.starts - 1):
        with serving(arm.command, READY_PATH, READY_SECONDS) as server:
            ready_ms.append(server.ready_ms)
    with serving(arm.command, READY_PATH, READY_SECONDS) as server:
        ready_ms.append(server.ready_ms)
        states = {"fresh": measure_idle(server, options.seconds)}
        about = read_model(server.port)
        asyncio.run(chat(server.port))
        states["after chats"] = measure_idle(server, options.seconds)
        status = server.stop()
    median = statistics.median(ready_ms)
    missed = missed_targets(median, states)
    if status != 0:
        missed.append(f"the server ended with status {status} on SIGTERM")
    return {
        **report,
        "command": arm.shown_command(),
        "version": version(),
        **about,
        "ready_ms": {"samples": ready_ms, "median": median},
        "idle": {name: asdict(idle) for name, idle in states.items()},
        "missed_targets": missed,
    }


def summary(report: dict[str, Any]) -> str:
    """Return the report as markdown."""
    note = f", {report['note']}" if report["note"] else ""
    starts = report["ready_ms"]["samples"]
    columns = (
        ("total", "anonymous_bytes", "file_bytes", "shared_bytes"),
        ("anonymous", "anonymous_bytes"),
        ("file", "file_bytes"),
        ("weights", "weights_bytes"),
        ("KV", "kv_bytes"),
        ("beyond weights and KV", "beyond_bytes"),
        ("beyond in RSS", "beyond_rss_bytes"),
    )
    lines = [
        f"{report['name']}: {report['machine_slug']}, {' '.join(report['command'])}{note}",
        "",
        f"ready after {report['ready_ms']['median']:.0f} ms, median of {len(starts)} starts "
        f"({min(starts):.0f} to {max(starts):.0f}); target {MAX_READY_MS:.0f}",
        "",
        f"| idle, PSS MB | {' | '.join(name for name, *_ in columns)} | CPU | others |",
        "|---" * (len(columns) + 3) + "|",
    ]
    for name, idle in report["idle"].items():
        cells = [f"{sum(idle[field] for field in fields) / 1e6:.1f}" for _, *fields in columns]
        others = f"{idle['steal'] + idle['others']:.0%}"
        lines.append(f"| {name} | {' | '.join(cells)} | {idle['cpu_share']:.2%} | {others} |")
    weights, kv = report["model"]["weights_bytes"], report["kv_cache"]["total_bytes"]
    lines += ["", f"planned: weights {weights / MIB:.0f} MiB, KV cache {kv / MIB:.0f} MiB"]
    missed = report["missed_targets"]
    lines += ["", *(f"MISSED: {text}" for text in missed)] if missed else ["", "all targets met"]
    return "\n".join(lines)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="of the report: letters, digits, dots and dashes")
    parser.add_argument("--model", required=True)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0, help="of watching it idle")
    parser.add_argument("--note", default="")
    parser.add_argument(
        "--edge-infer", default=str(Path(sys.executable).with_name("edge-infer")), help="command"
    )
    parser.add_argument("--edge-infer-extra", default="", help="more arguments for the server")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "results")
    options = parser.parse_args(arguments)
    if options.starts < 1:
        parser.error(f"--starts is {options.starts}, must be at least 1")
    if options.seconds < 1:
        parser.error(f"--seconds is {options.seconds:g}, must be at least 1")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure an idle server; the exit status is 1 when a target was missed."""
    options = parse_arguments(arguments)
    try:
        path = report_path(options.results, options.name)
        report = run(options)
    except (ServerError, ReadError, ResponseError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    write_report(path, report)
    text = summary(report)
    path.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    print(f"{text}\n\n{path}")
    return int(bool(report["missed_targets"]))


if __name__ == "__main__":
    sys.exit(main())
