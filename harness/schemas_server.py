"""Hundreds of JSON Schemas through a real server: each is refused, or its answers are valid.

    python -m harness.schemas_server --model smollm2-135m --samples 1 --keep

Every schema of `harness/schemas.json` is sent as a strict `response_format`, sampled at temperature
1.5. Prints a JSON report; the exit status is 1 when an answer was neither a refusal before
generation, nor cut by its length, nor valid.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from harness.http_client import Response, ResponseError, exchange, parse, request_bytes
from harness.report_file import REPOSITORY, provenance, report_path, version, write_report
from harness.schema_corpus import SCHEMAS, InvalidTextError, check_text
from harness.server_arms import EdgeInferServe, Seats, launch
from harness.server_process import HOST, ServerError

SCHEMA_VERSION = 1
READY_SECONDS = 300.0
CONTEXT_TOKENS = 2048
TEMPERATURE = 1.5
QUESTION = "Give me an example value, as JSON."
GOOD = ("refused", "valid", "cut")


def request_body(schema: Any, model: str, max_tokens: int, seed: int) -> dict[str, Any]:
    """Return the chat request for one answer."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": TEMPERATURE,
        "seed": seed,
        "max_tokens": max_tokens,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "example", "schema": schema, "strict": True},
        },
    }


def outcome_of(response: Response, entry: dict[str, Any]) -> tuple[str, str]:
    """Return what became of one request and the words for it.

    "refused", "valid" or "cut" (by its length); anything else is a fault: "invalid", "failed",
    "refused unexpectedly", "accepted unexpectedly".
    """
    body = response.json()
    if response.status == 400 and body["error"]["code"] == "invalid_grammar":
        return "refused" if "refused" in entry else "refused unexpectedly", body["error"]["message"]
    if response.status == 400 and isinstance(entry["schema"], bool):
        return "refused", body["error"]["message"]  # by the API, where a schema is an object
    if response.status != 200:
        return "failed", f"status {response.status}: {response.body[:300]!r}"
    choice = body["choices"][0]
    text, reason = choice["message"]["content"], choice["finish_reason"]
    if "refused" in entry:
        return "accepted unexpectedly", text
    if reason == "length":
        return "cut", text
    if reason != "stop":
        return "failed", f"finish_reason is {reason!r}"
    try:
        check_text(text, entry["schema"])
    except InvalidTextError as error:
        return "invalid", str(error)
    return "valid", text


async def ask_all(port: int, options: argparse.Namespace, model: str) -> list[dict[str, Any]]:
    """Return a record for every schema and seed, in that order; `streams` requests at once."""
    seats = asyncio.Semaphore(options.streams)

    async def ask(entry: dict[str, Any], seed: int) -> dict[str, Any]:
        body = json.dumps(request_body(entry["schema"], model, options.max_tokens, seed)).encode()
        request = request_bytes("POST", HOST, port, "/v1/chat/completions", body)
        async with seats:
            done = await exchange(HOST, port, request, timeout_seconds=options.timeout)
        try:
            outcome, words = outcome_of(parse(done), entry)
        except ResponseError as error:
            outcome, words = "failed", str(error)
        return {
            "schema": entry["name"],
            "seed": seed,
            "outcome": outcome,
            "words": words[:500],
            "seconds": round(done.ended - done.sent, 3),
        }

    asked = (ask(entry, options.seed + at) for entry in SCHEMAS for at in range(options.samples))
    return list(await asyncio.gather(*asked))


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start a server, ask it everything, and return the report.

    Raises:
        ServerError: if it does not start or ends on the way.
    """
    report = provenance("schemas_server", SCHEMA_VERSION, options.name, options.note)
    executable = shlex.split(options.edge_infer)
    arm = EdgeInferServe(executable, options.model, options.threads, version(), [])
    seats = Seats(options.streams, CONTEXT_TOKENS)
    with launch(arm, seats, READY_SECONDS) as server:
        began = time.perf_counter()
        records = asyncio.run(ask_all(server.port, options, arm.served_name))
        wall = time.perf_counter() - began
        if not server.alive():
            raise ServerError(f"the server ended: {server.log_tail()}")
        status = server.stop()
    outcomes = Counter(record["outcome"] for record in records)
    failed = [record for record in records if record["outcome"] not in GOOD]
    return {
        **report,
        "command": arm.shown_command(seats),
        "options": {
            "samples": options.samples,
            "streams": options.streams,
            "max_tokens": options.max_tokens,
            "temperature": TEMPERATURE,
            "seed": options.seed,
        },
        "schemas": len(SCHEMAS),
        "wall_seconds": round(wall, 1),
        "outcomes": dict(outcomes),
        "exit_status": status,
        "passed": not failed and status == 0,
        "failed": failed,
        "records": records,
    }


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", default="schemas", help="of the report kept with --keep")
    parser.add_argument("--model", required=True)
    parser.add_argument("--samples", type=int, default=1, help="answers for each schema")
    parser.add_argument("--streams", type=int, default=8, help="requests at once")
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one request")
    parser.add_argument("--seed", type=int, default=0, help="of the first answer")
    parser.add_argument("--note", default="")
    parser.add_argument(
        "--edge-infer", default=str(Path(sys.executable).with_name("edge-infer")), help="command"
    )
    parser.add_argument("--keep", action="store_true", help="file the report under results/")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "results")
    options = parser.parse_args(arguments)
    for field in ("samples", "streams", "max_tokens"):
        if getattr(options, field) < 1:
            parser.error(f"{field} is {getattr(options, field)}, must be at least 1")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Ask for every schema; the exit status is 1 when an answer was not as it must be."""
    options = parse_arguments(arguments)
    try:
        path = report_path(options.results, options.name) if options.keep else None
        report = run(options)
    except (ServerError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if path is not None:
        write_report(path, report)
    print(json.dumps({**report, "records": len(report["records"])}, indent=1))
    return int(not report["passed"])


if __name__ == "__main__":
    sys.exit(main())
