"""Compare `edge-infer serve` with llama-server on this machine in interleaved passes.

    python -m harness.compare_servers NAME --model smollm2-135m --gguf FILE.gguf \
        --streams 1 4 8 16 --passes 5

Two loads, greedy and streaming: "distinct", prompts that share nothing, and "shared", prompts with
one long prefix. Writes results/<machine>/servers/NAME.json and NAME.md. Without --model only
llama-server runs, without --gguf only ours.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from baselines.llama_cpp.build import BuildError
from baselines.llama_cpp.serve import LlamaServer, Variant

from harness import comparison, server_comparison, server_targets
from harness.arm import ReadError
from harness.report_file import REPOSITORY, provenance, report_path, version, write_report
from harness.server_arms import EdgeInferServe, Seats, ServerArm
from harness.server_comparison import ServerRun, label, run_server
from harness.server_process import ServerError
from harness.traffic import Traffic

OURS = EdgeInferServe.name
# A slot's context is a multiple of this in llama.cpp; ours gets the same.
CONTEXT_STEP = 256


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="of the report: letters, digits, dots and dashes")
    parser.add_argument("--model", help="MODEL of our arm")
    parser.add_argument(
        "--gguf",
        nargs="+",
        default=[],
        metavar="FILE[=NOTE]",
        help='models of the llama-server arms; NOTE relates them to ours: "same weights"',
    )
    parser.add_argument(
        "--edge-infer",
        default=str(Path(sys.executable).with_name("edge-infer")),
        help="command of our arm (default: beside this Python)",
    )
    parser.add_argument("--edge-infer-extra", default="", help="more arguments for our server")
    parser.add_argument("--llama-extra", default="", help="more arguments for llama-server")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--turns", type=int, default=2, help="requests of a stream in a load")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--loads", nargs="+", choices=["distinct", "shared"])
    parser.add_argument("-p", "--n-prompt", type=int, default=512, help="tokens, distinct")
    parser.add_argument("--prefix", type=int, default=1024, help="tokens all have in common")
    parser.add_argument("--tail", type=int, default=64, help="tokens after the prefix")
    parser.add_argument("-n", "--n-gen", type=int, default=128)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--flash-attention", type=int, nargs="+", default=[0, 1], choices=[0, 1])
    parser.add_argument(
        "--token-range", type=int, nargs=2, default=[1000, 40000], help="of random prompts"
    )
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one request")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--note", default="", help="stored and printed beside the figures")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "results")
    options = parser.parse_args(arguments)
    for field in ("turns", "passes", "n_prompt", "prefix", "tail", "threads"):
        if getattr(options, field) < 1:
            parser.error(f"{field} is {getattr(options, field)}, must be at least 1")
    if options.n_gen < 2:
        parser.error(f"n_gen is {options.n_gen}, must be at least 2")
    if min(options.streams) < 1:
        parser.error(f"--streams has {min(options.streams)}, must be at least 1")
    if not 0 <= options.token_range[0] < options.token_range[1]:
        parser.error(f"--token-range is {options.token_range}, must be LOW and a larger HIGH")
    if options.model is None and not options.gguf:
        parser.error("neither --model nor --gguf is given: no arm to run")
    options.gguf = [gguf_argument(text) for text in options.gguf]
    for path, _ in options.gguf:
        if not path.is_file():
            parser.error(f"--gguf {path} is not a file")
    return options


def gguf_argument(text: str) -> tuple[Path, str]:
    """Return file and note of FILE[=NOTE]."""
    path, _, note = text.partition("=")
    return Path(path), note


def make_loads(options: argparse.Namespace) -> list[Traffic]:
    """Return the loads asked for, all if none is named."""
    rest = options.n_gen, *options.token_range, options.seed
    loads = [
        Traffic("distinct", 0, options.n_prompt, *rest),
        Traffic("shared", options.prefix, options.tail, *rest),
    ]
    return [load for load in loads if options.loads is None or load.name in options.loads]


def make_arms(options: argparse.Namespace) -> list[ServerArm]:
    """Return our arm and one llama-server arm per file and flash-attention setting."""
    arms: list[ServerArm] = []
    if options.model is not None:
        command, extra = shlex.split(options.edge_infer), shlex.split(options.edge_infer_extra)
        arms.append(EdgeInferServe(command, options.model, options.threads, version(), extra))
    extra = shlex.split(options.llama_extra)
    arms += [
        LlamaServer(Variant(bool(flash), path, note), options.threads, extra)
        for path, note in options.gguf
        for flash in options.flash_attention
    ]
    return arms


def context_tokens(loads: list[Traffic]) -> int:
    """Return the context every stream gets: that of the longest request, in whole steps."""
    longest = max(load.prompt_tokens + load.n_gen for load in loads)
    return -(-longest // CONTEXT_STEP) * CONTEXT_STEP


def run_passes(
    options: argparse.Namespace,
    arms: list[ServerArm],
    loads: list[Traffic],
    all_seats: list[Seats],
    orders: list[list[str]],
) -> list[ServerRun]:
    """Run every arm at every number of streams once per pass, arms next to each other.

    An arm that failed is not started again: it has no figure any more.
    """
    by_name = {arm.name: arm for arm in arms}
    runs: list[ServerRun] = []
    failed: set[str] = set()
    for index, order in enumerate(orders):
        for seats in all_seats:
            for name in order:
                if name in failed:
                    continue
                run = run_server(by_name[name], seats, loads, options.turns, index, options.timeout)
                runs.append(run)
                if run.failure is not None:
                    failed.add(name)
                speeds = ", ".join(
                    f"{load.traffic} {load.figures.output_tok_s:.0f} tok/s" for load in run.loads
                )
                print(
                    f"pass {index + 1}, {name} x{seats.streams}: {run.failure or speeds}",
                    file=sys.stderr,
                )
    return runs


def compare(options: argparse.Namespace, arms: list[ServerArm]) -> dict[str, Any]:
    """Prove every arm's path, run all passes, and return the report."""
    report = provenance(
        "compare_servers", server_comparison.SCHEMA_VERSION, options.name, options.note
    )
    loads = make_loads(options)
    all_seats = [Seats(streams, context_tokens(loads)) for streams in options.streams]
    about = {
        arm.name: {
            "commands": {f"x{seats.streams}": arm.shown_command(seats) for seats in all_seats},
            **arm.about,
            "proof": arm.proof(all_seats[-1]),
        }
        for arm in arms
    }
    orders = comparison.schedule([arm.name for arm in arms], options.passes, options.seed)
    runs = run_passes(options, arms, loads, all_seats, orders)
    results = {
        name: {**shown, **server_comparison.arm_result([run for run in runs if run.arm == name])}
        for name, shown in about.items()
    }
    ratios = server_comparison.ratios(results, OURS, options.seed)
    return {
        **report,
        "loads": [vars(load) for load in loads],
        "turns": options.turns,
        "streams": options.streams,
        "context_tokens": context_tokens(loads),
        "threads": options.threads,
        "labels": [label(load.name, streams) for load in loads for streams in options.streams],
        "passes": options.passes,
        "seed": options.seed,
        "orders": orders,
        "arms": results,
        "ratios": ratios,
        "targets": server_targets.judge(ratios),
        "runs": [server_comparison.run_record(run) for run in runs],
    }


def main(arguments: list[str] | None = None) -> int:
    """Run a comparison; the exit status is 1 when an arm failed."""
    options = parse_arguments(arguments)
    try:
        path = report_path(options.results, options.name)
        report = compare(options, make_arms(options))
    except (BuildError, ReadError, ServerError, ValueError, FileExistsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    write_report(path, report)
    text = server_comparison.table(report)
    path.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    print(f"{text}\n\n{path}")
    return int(any(arm["failure"] is not None for arm in report["arms"].values()))


if __name__ == "__main__":
    sys.exit(main())
