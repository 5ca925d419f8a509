"""Many clients on one server for minutes, some of which leave: nothing may fail, leak or differ.

    python -m harness.soak_server NAME --model smollm2-135m --streams 64 --minutes 5

Chats and completions of mixed lengths, some with common prefixes, some with n=2. Every known
question is first asked alone; under load its greedy answer must be the same. Writes
results/<machine>/servers/NAME.json and NAME.md; the exit status is 1 when a check failed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from harness.arm import ReadError
from harness.http_client import ResponseError, exchange
from harness.replies import Reply, read_reply
from harness.report_file import REPOSITORY, provenance, report_path, version, write_report
from harness.server_arms import EdgeInferServe, Seats, launch
from harness.server_process import HOST, ServerError, ServerProcess
from harness.soak_report import (
    COUNTERS,
    GAUGES,
    Sample,
    failed_checks,
    latencies,
    memory_growth,
    queue_figures,
    read_metrics,
    summary,
    take_sample,
)
from harness.soak_traffic import (
    Lengths,
    Question,
    Tally,
    check_reply,
    judge,
    question,
    request_body,
    visit,
)
from harness.traffic import encode

SCHEMA_VERSION = 1
READY_SECONDS = 300.0
DRAIN_SECONDS = 10.0
SAMPLE_SECONDS = 10.0


async def ask_alone(port: int, questions: list[Question], timeout_seconds: float) -> list[Reply]:
    """Return the reply to each question when nothing else runs and nothing is cached for it.

    Raises:
        ResponseError: if one is not answered in full.
    """
    replies = []
    for index, asked in enumerate(questions):
        request = encode(port, request_body(asked, False, f"alone {index}"), asked.path)
        done = await exchange(HOST, port, request, timeout_seconds=timeout_seconds)
        reply = read_reply(done, stream=False)
        wrong = check_reply(reply, asked)
        if wrong is not None:
            raise ResponseError(f"alone, {asked.kind}: {wrong}")
        replies.append(reply)
    return replies


async def soak(
    server: ServerProcess,
    options: argparse.Namespace,
    lengths: Lengths,
    questions: list[Question],
    alone: list[Reply],
) -> tuple[Tally, list[Sample]]:
    """Keep all clients busy until the time is over, then let them finish."""
    tally, samples = Tally(), []
    began = time.perf_counter()
    deadline = began + options.minutes * 60

    async def client(index: int) -> None:
        rng = np.random.default_rng([options.seed, 1, index])
        while time.perf_counter() < deadline and server.alive():
            made = visit(rng, questions, lengths, options.served, options.disconnect)
            done = await exchange(
                HOST,
                server.port,
                encode(server.port, made.body, made.question.path),
                timeout_seconds=options.timeout,
                hang_up=made.hang_up,
            )
            judge(done, made, alone, tally)

    async def watch() -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            samples.append(await asyncio.to_thread(take_sample, server, began))

    watching = asyncio.create_task(watch())
    clients = asyncio.gather(*(client(index) for index in range(options.streams)))
    try:
        # A watch that fails ends the soak, too.
        both: list[asyncio.Future[Any]] = [watching, clients]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        await clients
    finally:
        watching.cancel()
        clients.cancel()
    return tally, samples


async def drained(port: int) -> None:
    """Return once nothing runs, waits or holds KV blocks, or when that takes too long."""
    deadline = time.perf_counter() + DRAIN_SECONDS
    while any((await asyncio.to_thread(read_metrics, port, GAUGES)).values()):
        if time.perf_counter() > deadline:
            return
        await asyncio.sleep(0.1)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start a server, put the load on it, and return the report.

    Raises:
        ServerError, ResponseError, ReadError: if it does not even answer one client.
    """
    report = provenance("soak_server", SCHEMA_VERSION, options.name, options.note)
    lengths = Lengths((4, options.max_prompt), (2, options.max_gen), tuple(options.token_range))
    extra = ["--batch-invariant", "--kv-budget", options.kv_budget]
    arm = EdgeInferServe(
        shlex.split(options.edge_infer),
        options.model,
        options.threads,
        version(),
        [*extra, *shlex.split(options.edge_infer_extra)],
    )
    options.served = arm.served_name
    rng = np.random.default_rng([options.seed, 0])
    questions = [question(rng, lengths, options.served) for _ in range(options.questions)]
    seats = Seats(options.streams, options.max_prompt + options.max_gen)
    cores = len(os.sched_getaffinity(0))
    with launch(arm, seats, READY_SECONDS) as server:
        alone = asyncio.run(ask_alone(server.port, questions, options.timeout))
        began, client, cpu = time.perf_counter(), time.process_time(), server.cpu_seconds()
        before = read_metrics(server.port, COUNTERS)
        tally, samples = asyncio.run(soak(server, options, lengths, questions, alone))
        wall = time.perf_counter() - began
        client, cpu = time.process_time() - client, server.cpu_seconds() - cpu
        if not server.alive():
            raise ServerError(f"the server ended: {server.log_tail()}")
        asyncio.run(drained(server.port))
        end, after = take_sample(server, began), read_metrics(server.port, COUNTERS)
        log, status = server.log_tail(), server.stop()
    growth = memory_growth(samples, end, options.minutes)
    return {
        **report,
        "command": arm.shown_command(seats),
        "options": {key: value for key, value in vars(options).items() if key in SHOWN_OPTIONS},
        "wall_seconds": round(wall, 1),
        "outcomes": dict(tally.outcomes),
        "compared": dict(sorted(tally.compared.items())),
        "output_tok_s": round(tally.generated_tokens / wall, 1),
        "client_cpu_share": round(client / (wall * cores), 4),
        "server_cpu_share": round(cpu / (wall * cores), 4),
        "latency": latencies(tally),
        "queues": queue_figures(samples),
        "counters": {name: after[name] - before[name] for name in COUNTERS},
        "samples": [asdict(sample) for sample in [*samples, end]],
        "memory_growth": {name: round(value, 4) for name, value in growth.items()},
        "failures": tally.failures,
        "server_log": log,
        "exit_status": status,
        "failed_checks": failed_checks(tally, end, growth, status),
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
    parser.add_argument("name", help="of the report: letters, digits, dots and dashes")
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, default=64, help="clients at once")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--disconnect", type=float, default=0.2, help="share of clients that leave")
    parser.add_argument("--questions", type=int, default=48, help="asked alone first")
    parser.add_argument("--max-prompt", type=int, default=768, help="tokens")
    parser.add_argument("--max-gen", type=int, default=128, help="tokens")
    parser.add_argument("--token-range", type=int, nargs=2, default=[1000, 40000])
    # Small enough to be in use as a whole within the first minute, and for preemptions.
    parser.add_argument("--kv-budget", default="160MiB")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one request")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--note", default="")
    parser.add_argument(
        "--edge-infer", default=str(Path(sys.executable).with_name("edge-infer")), help="command"
    )
    parser.add_argument("--edge-infer-extra", default="", help="more arguments for the server")
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
        path = report_path(options.results, options.name)
        report = run(options)
    except (ServerError, ReadError, ResponseError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    write_report(path, report)
    text = summary(report)
    path.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    print(f"{text}\n\n{path}")
    return int(bool(report["failed_checks"]))


if __name__ == "__main__":
    sys.exit(main())
