"""`edge-infer bench`: prefill and decode speed, with llama-bench's options and fields."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from datetime import UTC, datetime
from statistics import mean, stdev
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from edge_infer import __version__, _native
from edge_infer.cli.errors import clear_errors
from edge_infer.engine.bench import Bench, BenchCase, BenchResult
from edge_infer.engine.load import LoadedModel, load_model
from edge_infer.engine.options import EngineOptions
from edge_infer.hub.source import resolve_model

FORMATS = ("table", "json", "csv")


def bench(
    model: Annotated[str, typer.Argument(help="A folder, a GGUF file, a hub id or a name.")],
    n_prompt: Annotated[
        str, typer.Option("-p", "--n-prompt", help="Tokens to prefill, 0 for none.")
    ] = "512",
    n_gen: Annotated[
        str, typer.Option("-n", "--n-gen", help="Tokens to decode, 0 for none.")
    ] = "128",
    n_depth: Annotated[
        str, typer.Option("-d", "--n-depth", help="Tokens of KV before the test.")
    ] = "0",
    batch: Annotated[str, typer.Option("-b", "--batch", help="Sequences side by side.")] = "1",
    threads: Annotated[
        int | None, typer.Option("-t", "--threads", help="Default: what the machine grants.")
    ] = None,
    repetitions: Annotated[int, typer.Option("-r", "--repetitions", min=1, max=1000)] = 5,
    output: Annotated[str, typer.Option("-o", "--output", help="table, json or csv.")] = "table",
    kv_dtype: Annotated[str, typer.Option(help="KV cache: bf16, f16, f32 or int8.")] = "bf16",
    activations: Annotated[
        str, typer.Option(help="Input of 4- and 8-bit weights: int8, bf16 or auto.")
    ] = "auto",
    step_tokens: Annotated[int, typer.Option(help="Tokens of one prefill step.")] = 512,
) -> None:
    """Time prefill and decode. -p, -n, -d and -b take lists, as in -d 0,512."""
    with clear_errors():
        if output not in FORMATS:
            raise ValueError(f"--output must be one of {', '.join(FORMATS)}, not {output!r}")
        cases = _cases(
            _numbers("-p", n_prompt, 0),
            _numbers("-n", n_gen, 0),
            _numbers("-d", n_depth, 0),
            _numbers("-b", batch, 1),
        )
        widest = max(case.batch for case in cases)
        longest = max(case.positions for case in cases)
        options = EngineOptions(
            max_model_len=longest,
            max_num_seqs=widest,
            max_num_batched_tokens=max(step_tokens, widest),
            kv_dtype=kv_dtype,  # type: ignore[arg-type]  # checked by EngineOptions
            activations=activations,  # type: ignore[arg-type]
            threads=threads,
        )
        loaded = load_model(resolve_model(model).path, options)
        results = _run(loaded, cases, repetitions)
        rows = [_row(model, loaded, result) for result in results]
        {"table": _table, "json": _json, "csv": _csv}[output](rows)


def _numbers(option: str, text: str, low: int) -> list[int]:
    """A list such as "0,512". Raises ValueError that names the option."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} takes numbers separated by commas, not {text!r}") from None
    for number in numbers:
        if not low <= number <= 1 << 20:
            raise ValueError(f"{option} takes numbers of {low} to {1 << 20}, not {number}")
    return numbers


def _cases(
    prompts: list[int], gens: list[int], depths: list[int], batches: list[int]
) -> list[BenchCase]:
    cases = [
        BenchCase(p, g, d, b)
        for b, d in itertools.product(batches, depths)
        for p, g in [*((p, 0) for p in prompts), *((0, g) for g in gens)]
        if p or g
    ]
    if not cases:
        raise ValueError("nothing to time: -p and -n are both 0")
    return cases


def _run(loaded: LoadedModel, cases: list[BenchCase], repetitions: int) -> list[BenchResult]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    timer = Bench(loaded)
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("timing", total=len(cases) * (repetitions + 1))
        return [timer.run(case, repetitions, lambda: progress.advance(task)) for case in cases]


def _row(name: str, loaded: LoadedModel, result: BenchResult) -> dict[str, Any]:
    """One test under llama-bench's field names, then ours."""
    case, ns = result.case, result.samples_ns
    parameters = sum(t.n * t.k for t in loaded.spec.linears)
    return {
        "build_version": __version__,
        "cpu_info": _native.cpu_features()["brand"],
        "model_filename": name,
        "model_type": loaded.checkpoint.config["architectures"][0],
        "model_size": loaded.spec.weight_bytes,
        "model_n_params": parameters,
        "n_batch": case.batch,
        "n_threads": loaded.threads.threads,
        "type_k": loaded.options.kv_dtype,
        "type_v": loaded.options.kv_dtype,
        "n_prompt": case.n_prompt,
        "n_gen": case.n_gen,
        "n_depth": case.n_depth,
        "test_time": datetime.now(UTC).isoformat(timespec="seconds"),
        "avg_ns": round(mean(ns)),
        "stddev_ns": round(stdev(ns)) if len(ns) > 1 else 0,
        "avg_ts": result.avg_ts,
        "stddev_ts": result.stddev_ts,
        "samples_ns": ns,
        "samples_ts": result.samples_ts,
        "isa": loaded.isa,
        "kernels": result.kernels,
        "activations": loaded.activations,
        "formats": sorted(set(loaded.formats.values())),
        "weights_bytes": loaded.spec.weight_bytes,
        "cpus": loaded.threads.cpus,
    }


def _json(rows: list[dict[str, Any]]) -> None:
    json.dump(rows, sys.stdout, indent=2)
    print()


def _csv(rows: list[dict[str, Any]]) -> None:
    writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]))
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in row.items()}
        )


def _table(rows: list[dict[str, Any]]) -> None:
    first = rows[0]
    title = f"{first['model_filename']}, {first['model_n_params'] / 1e6:.1f} M weights"
    table = Table(title=f"{title}, on {first['cpu_info']}", box=None, pad_edge=False)
    for heading in ("size", "isa", "threads", "kv", "batch", "test", "tokens/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        test = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
        if row["n_depth"]:
            test += f" @ d{row['n_depth']}"
        table.add_row(
            f"{row['model_size'] / 2**20:.1f} MiB",
            row["isa"],
            str(row["n_threads"]),
            row["type_k"],
            str(row["n_batch"]),
            test,
            f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}",
        )
    console = Console()
    console.print(table)
    ran = sorted({name for row in rows for name in row["kernels"]})
    console.print(f"kernels that ran: {', '.join(ran)}", soft_wrap=True)
