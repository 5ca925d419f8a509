"""Compare `edge-infer bench` with llama-bench on this machine in interleaved passes.

    python -m harness.compare_llama NAME --gguf MODEL.gguf --model MODEL [--note "random weights"]

Writes results/<machine>/<date>-NAME.json and prints a table. Without --model only llama.cpp runs.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from baselines.llama_cpp.build import BuildError
from baselines.llama_cpp.read import LlamaBench

from harness import comparison
from harness.arm import Arm, Run, Workload, run
from harness.edge_infer_arm import EdgeInferBench
from harness.machine import Machine, describe, git_state

REPOSITORY = Path(__file__).resolve().parent.parent
OURS = "edge-infer"


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line, with lists of numbers as tuples."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="of the result file: letters, digits, dots and dashes")
    parser.add_argument("--gguf", type=Path, required=True, help="model of the llama.cpp arms")
    parser.add_argument("--model", help="MODEL of our arm; without it only llama.cpp is measured")
    parser.add_argument(
        "--edge-infer",
        default=str(Path(sys.executable).with_name("edge-infer")),
        help="command of our arm (default: beside this Python)",
    )
    parser.add_argument("-p", "--n-prompt", type=int, default=512)
    parser.add_argument("-n", "--n-gen", type=int, default=128)
    parser.add_argument("-d", "--depths", type=_numbers, default=(0, 512))
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-r", "--repetitions", type=int, default=1, help="inside one process")
    parser.add_argument("--flash-attention", type=_numbers, default=(0, 1), help="arms to run")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--memory-runs", type=int, default=1, help="untimed, sampled at 20 Hz")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--note", default="", help="stored and printed beside the figures")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "results")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", options.name):
        parser.error(f"name is {options.name!r}, must be letters, digits, dots and dashes")
    if not set(options.flash_attention) <= {0, 1}:
        parser.error(f"--flash-attention is {options.flash_attention}, must be of 0 and 1")
    for field in ("n_prompt", "n_gen", "threads", "repetitions", "passes"):
        if getattr(options, field) < 1:
            parser.error(f"{field} is {getattr(options, field)}, must be at least 1")
    if not options.gguf.is_file():
        parser.error(f"--gguf {options.gguf} is not a file")
    return options


def _numbers(text: str) -> tuple[int, ...]:
    """Return a comma-separated list of non-negative integers without repeats."""
    numbers = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    if any(number < 0 for number in numbers):
        raise argparse.ArgumentTypeError(f"{text} has a negative number")
    return numbers


def make_arms(
    options: argparse.Namespace, workload: Workload, machine: Machine, version: str
) -> list[Arm]:
    """Return our arm, if asked for, and one llama.cpp arm for each flash-attention setting."""
    arms: list[Arm] = []
    if options.model is not None:
        arms.append(
            EdgeInferBench(shlex.split(options.edge_infer), options.model, workload, version)
        )
    amx = machine.best_isa == "amx"
    arms += [
        LlamaBench(options.gguf, workload, bool(flash_attention), amx)
        for flash_attention in options.flash_attention
    ]
    return arms


def compare(
    options: argparse.Namespace, arms: list[Arm], workload: Workload, machine: Machine
) -> dict[str, Any]:
    """Run all passes and memory runs and return the result to store."""
    labels = workload.labels()
    commit, changed = git_state(REPOSITORY)
    created = datetime.now(UTC).isoformat(timespec="seconds")

    def launch(arm: Arm, sample_memory: bool = False) -> Run:
        done = run(arm, labels, options.timeout, sample_memory)
        state = "ok" if done.failure is None else f"failed: {done.failure}"
        print(f"{arm.name}: {done.wall_seconds:.1f} s, {state}", file=sys.stderr)
        return done

    orders = comparison.schedule([arm.name for arm in arms], options.passes, options.seed)
    timed = comparison.run_passes(arms, orders, launch)
    failed = {done.arm for _, done in timed if done.failure is not None}
    memory = [
        launch(arm, sample_memory=True)
        for arm in arms
        if arm.name not in failed
        for _ in range(options.memory_runs)
    ]
    runs = [done for _, done in timed] + memory
    results = {
        arm.name: comparison.arm_result(
            arm, labels, [done for done in runs if done.arm == arm.name]
        )
        for arm in arms
    }
    return {
        "schema_version": comparison.SCHEMA_VERSION,
        "kind": "compare_llama",
        "name": options.name,
        "created": created,
        "note": options.note,
        "git_commit": commit,
        "git_changed": changed,
        "machine_slug": machine.slug,
        "machine": asdict(machine),
        "workload": asdict(workload),
        "labels": labels,
        "passes": options.passes,
        "seed": options.seed,
        "orders": orders,
        "arms": results,
        "ratios": comparison.ratios(results, OURS, labels, options.seed),
        "runs": [comparison.run_record(index, done) for index, done in timed]
        + [comparison.run_record(None, done) for done in memory],
    }


def main(arguments: list[str] | None = None) -> int:
    """Run a comparison; the exit status is 1 when an arm failed."""
    options = parse_arguments(arguments)
    machine = describe()
    workload = Workload(
        options.n_prompt, options.n_gen, options.depths, options.threads, options.repetitions
    )
    folder = options.results / machine.slug
    path = folder / f"{datetime.now(UTC):%Y-%m-%d}-{options.name}.json"
    if path.exists():
        print(f"error: {path} exists; results are not overwritten", file=sys.stderr)
        return 1
    commit, changed = git_state(REPOSITORY)
    try:
        arms = make_arms(options, workload, machine, commit + ("+changes" if changed else ""))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    result = compare(options, arms, workload, machine)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(comparison.table(result))
    print(f"\n{path}")
    return int(any(arm["failure"] is not None for arm in result["arms"].values()))


if __name__ == "__main__":
    sys.exit(main())
