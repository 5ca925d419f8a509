"""Many clients on one server for minutes, some of which leave: nothing may fail, leak or differ.

    python -m harness.soak_server --model smollm2-135m --streams 64 --minutes 5 --disconnect 0.2

Every known question is first asked alone; under load its greedy answer must be the same. Prints a
JSON report; the exit status is 1 when a check failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.arm import ReadError
from harness.http_client import ResponseError, exchange
from harness.mappings import kv_pss_bytes, mappings_of
from harness.prometheus_text import metric
from harness.report_file import REPOSITORY, provenance, report_path, version, write_report
from harness.server_arms import EdgeInferServe, Seats, launch
from harness.server_process import HOST, ServerError, ServerProcess, get
from harness.soak_traffic import (
    Lengths,
    Question,
    Tally,
    completion_request,
    judge,
    question,
    read_completion,
    visit,
)
from harness.traffic import Completion, encode

SCHEMA_VERSION = 1
READY_SECONDS = 300.0
DRAIN_SECONDS = 10.0
SAMPLE_SECONDS = 10.0
SETTLE_SECONDS = 60.0  # memory is compared with that after this long
MAX_GROWTH = 0.02
GAUGES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_usage": "vllm:kv_cache_usage_perc",
}


@dataclass(frozen=True)
class MemoryPoint:
    """Memory of the server at one moment of the load, bytes of PSS.

    Attributes:
        kv_bytes: the KV cache's part of `anonymous_bytes`.
    """

    seconds: float
    anonymous_bytes: int
    file_bytes: int
    kv_bytes: int


def memory_point(server: ServerProcess, began: float) -> MemoryPoint:
    """Read the server's memory now; OSError when it is gone."""
    pss = server.pss()
    return MemoryPoint(
        round(time.perf_counter() - began, 1),
        pss.anonymous_bytes,
        pss.file_bytes,
        kv_pss_bytes(mappings_of(server.pid)),
    )


def gauges(port: int) -> dict[str, float]:
    """Return running and waiting requests and the use of the KV cache from /metrics.

    Raises:
        ReadError: if /metrics lacks one or cannot be read.
    """
    status, text = get(port, "/metrics")
    if status != 200:
        raise ReadError(f"/metrics answers {status}: {text[:200]}")
    return {field: metric(text, name) for field, name in GAUGES.items()}


async def ask_alone(
    port: int, questions: list[Question], model: str, timeout_seconds: float
) -> list[Completion]:
    """Return the answer to each question when nothing else runs.

    Raises:
        ResponseError: if one is not answered in full.
    """
    answers = []
    for asked in questions:
        request = encode(port, completion_request(asked, model, stream=False))
        done = await exchange(HOST, port, request, timeout_seconds=timeout_seconds)
        answer = read_completion(done, stream=False)
        if answer.usage["completion_tokens"] != asked.n_gen:
            raise ResponseError(f"alone: {answer.usage}, asked for {asked.n_gen} tokens")
        answers.append(answer)
    return answers


async def soak(
    server: ServerProcess,
    options: argparse.Namespace,
    lengths: Lengths,
    questions: list[Question],
    answers: list[Completion],
) -> tuple[Tally, list[MemoryPoint]]:
    """Keep all clients busy until the time is over, then let them finish."""
    tally, memory = Tally(), []
    began = time.perf_counter()
    deadline = began + options.minutes * 60

    async def client(index: int) -> None:
        rng = np.random.default_rng([options.seed, 1, index])
        while time.perf_counter() < deadline and server.alive():
            made = visit(rng, questions, lengths, options.served, options.disconnect)
            done = await exchange(
                HOST,
                server.port,
                encode(server.port, made.body),
                timeout_seconds=options.timeout,
                hang_up=made.hang_up,
            )
            judge(done, made, answers, tally)

    async def watch() -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            memory.append(await asyncio.to_thread(memory_point, server, began))

    watching = asyncio.create_task(watch())
    try:
        await asyncio.gather(*(client(index) for index in range(options.streams)))
    finally:
        watching.cancel()
    return tally, memory


async def drained(port: int) -> dict[str, float]:
    """Return the gauges once all are 0, or as they are when that takes too long."""
    deadline = time.perf_counter() + DRAIN_SECONDS
    while True:
        now = await asyncio.to_thread(gauges, port)
        if not any(now.values()) or time.perf_counter() > deadline:
            return now
        await asyncio.sleep(0.1)


def settled(memory: list[MemoryPoint], minutes: float) -> MemoryPoint:
    """Return the point that growth is measured from: after a minute, or half of a short soak.

    Raises:
        ValueError: if the soak was too short to have one.
    """
    after = min(SETTLE_SECONDS, minutes * 30)
    late = [point for point in memory if point.seconds >= after]
    if not late:
        raise ValueError(f"--minutes is {minutes:g}, too short for two memory readings")
    return late[0]


def failed_checks(
    tally: Tally, gauges_after: dict[str, float], growth: float, exit_status: int
) -> list[str]:
    """Return a sentence for each check that failed."""
    failed = [
        f"{tally.outcomes[kind]} requests {kind}, first: {tally.failures[0]}"
        for kind in ("failed", "differing")
        if tally.outcomes[kind]
    ]
    if not tally.compared:
        failed.append("no answer was compared")
    failed += [
        f"{name} is {value:g} after the load, must be 0"
        for name, value in gauges_after.items()
        if value
    ]
    if growth > MAX_GROWTH:
        failed.append(f"anonymous memory grew by {growth:.1%}, allowed are {MAX_GROWTH:.0%}")
    if exit_status != 0:
        failed.append(f"the server ended with status {exit_status} on SIGTERM")
    return failed


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start a server, put the load on it, and return the report.

    Raises:
        ServerError, ResponseError, ReadError: if it does not even answer one client.
    """
    report = provenance("soak_server", SCHEMA_VERSION, options.name, options.note)
    lengths = Lengths((4, options.max_prompt), (2, options.max_gen), tuple(options.token_range))
    rng = np.random.default_rng([options.seed, 0])
    questions = [question(rng, lengths) for _ in range(options.questions)]
    extra = ["--batch-invariant", "--kv-budget", options.kv_budget]
    arm = EdgeInferServe(
        shlex.split(options.edge_infer),
        options.model,
        options.threads,
        version(),
        [*extra, *shlex.split(options.edge_infer_extra)],
    )
    options.served = arm.served_name
    seats = Seats(options.streams, options.max_prompt + options.max_gen)
    cores = len(os.sched_getaffinity(0))
    with launch(arm, seats, READY_SECONDS) as server:
        where = server.port, questions, options.served, options.timeout
        answers = asyncio.run(ask_alone(*where))
        began, client, cpu = time.perf_counter(), time.process_time(), server.cpu_seconds()
        tally, memory = asyncio.run(soak(server, options, lengths, questions, answers))
        wall = time.perf_counter() - began
        client, cpu = time.process_time() - client, server.cpu_seconds() - cpu
        if not server.alive():
            raise ServerError(f"the server ended: {server.log_tail()}")
        after = asyncio.run(drained(server.port))
        end = memory_point(server, began)
        log, status = server.log_tail(), server.stop()
    start = settled(memory, options.minutes)
    growth = end.anonymous_bytes / start.anonymous_bytes - 1
    failed = failed_checks(tally, after, growth, status)
    return {
        **report,
        "command": arm.shown_command(seats),
        "options": {key: value for key, value in vars(options).items() if key in SHOWN_OPTIONS},
        "wall_seconds": round(wall, 1),
        "outcomes": dict(tally.outcomes),
        "compared_answers": tally.compared,
        "output_tok_s": round(tally.generated_tokens / wall, 1),
        "client_cpu_share": round(client / (wall * cores), 4),
        "server_cpu_share": round(cpu / (wall * cores), 4),
        "gauges_after": after,
        "memory": [asdict(point) for point in [*memory, end]],
        "anonymous_growth": round(growth, 4),
        "failures": tally.failures,
        "server_log": log,
        "exit_status": status,
        "failed_checks": failed,
    }


SHOWN_OPTIONS = (
    "streams",
    "minutes",
    "disconnect",
    "questions",
    "max_prompt",
    "max_gen",
    "token_range",
    "seed",
)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", default="soak", help="of the report kept with --keep")
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, default=64, help="clients at once")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--disconnect", type=float, default=0.2, help="share of clients that leave")
    parser.add_argument("--questions", type=int, default=32, help="asked alone first")
    parser.add_argument("--max-prompt", type=int, default=768, help="tokens")
    parser.add_argument("--max-gen", type=int, default=128, help="tokens")
    parser.add_argument("--token-range", type=int, nargs=2, default=[1000, 40000])
    # Small enough to be in use as a whole within the first minute, and for preemptions.
    parser.add_argument("--kv-budget", default="512MiB")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one request")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--note", default="")
    parser.add_argument(
        "--edge-infer", default=str(Path(sys.executable).with_name("edge-infer")), help="command"
    )
    parser.add_argument("--edge-infer-extra", default="", help="more arguments for the server")
    parser.add_argument("--keep", action="store_true", help="file the report under results/")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "results")
    options = parser.parse_args(arguments)
    if not 0 <= options.disconnect < 1:
        parser.error(f"--disconnect is {options.disconnect}, must be at least 0 and below 1")
    if options.minutes * 30 < SAMPLE_SECONDS:
        parser.error(f"--minutes is {options.minutes:g}, must be at least {SAMPLE_SECONDS / 30:g}")
    for field, low in (("streams", 1), ("questions", 1), ("max_prompt", 5), ("max_gen", 3)):
        if getattr(options, field) < low:
            parser.error(f"{field} is {getattr(options, field)}, must be at least {low}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Soak a server; the exit status is 1 when a check failed."""
    options = parse_arguments(arguments)
    try:
        path = report_path(options.results, options.name) if options.keep else None
        report = run(options)
    except (ServerError, ReadError, ResponseError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if path is not None:
        write_report(path, report)
    print(json.dumps(report, indent=1))
    return int(bool(report["failed_checks"]))


if __name__ == "__main__":
    sys.exit(main())
