"""`edge-infer quantize`: convert a Hugging Face folder or a GGUF file to 4 bits."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from edge_infer.checkpoint.convert import ConversionReport, convert
from edge_infer.checkpoint.plan import QuantizeOptions
from edge_infer.cli.errors import clear_errors


def quantize(
    src: Annotated[Path, typer.Argument(help="A Hugging Face folder or a GGUF file.")],
    dst: Annotated[Path, typer.Argument(help="The folder to create.")],
    group_size: Annotated[
        int | None,
        typer.Option(
            help="Weights that share a scale: 32, 64 or 128. Default 128, 32 for GGUF K-quants; "
            "smaller for a tensor whose columns are not a multiple of it."
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            help="symmetric, or min (scale and minimum). Default symmetric; min for GGUF K-quants."
        ),
    ] = None,
    scale_type: Annotated[
        str, typer.Option(help="Type of scales and minimums: f16, bf16.")
    ] = "f16",
    head_format: Annotated[
        str, typer.Option(help="Embedding and output head: int8, int4 or keep.")
    ] = "int8",
    wide_format: Annotated[
        str, typer.Option(help="GGUF tensors of 5 and 6 bits: int8 or int4.")
    ] = "int8",
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier checkpoint.")] = False,
) -> None:
    """Write SRC as a cpu_int4 checkpoint to DST. Q4_0, Q4_1 and Q8_0 weights keep their values."""
    options = QuantizeOptions(group_size, form, scale_type, head_format, wide_format)
    console = Console(stderr=True)
    with clear_errors(), _progress_bar(console) as bar:
        task = bar.add_task("", total=None)

        def show(name: str, done: int, total: int) -> None:
            bar.update(task, description=name, completed=done, total=total)

        report = convert(src, dst, options, force=force, progress=show)
    typer.echo(summary(report))


def summary(report: ConversionReport) -> str:
    """What a person wants to know after a conversion, notes about unusual tensors first."""
    lines = list(report.notes)
    noted: dict[str, list[str]] = {}
    for tensor in report.tensors:
        if tensor.note:
            noted.setdefault(tensor.note, []).append(tensor.name)
    for note, names in noted.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"{names[0]}{more}: {note}")
    packed = [tensor for tensor in report.tensors if tensor.module is not None]
    exact = [tensor for tensor in packed if tensor.error == 0]
    rounded = [tensor for tensor in packed if tensor.error > 0]
    text = f"{len(packed)} of {len(report.tensors)} tensors packed, {len(exact)} of them exactly"
    if rounded:
        worst = max(rounded, key=lambda tensor: tensor.error)
        mean = sum(tensor.error for tensor in rounded) / len(rounded)
        text += f"; relative error mean {mean:.4f}, largest {worst.error:.4f} ({worst.name})"
    lines.append(text)
    lines.append(
        f"{report.path}: {report.source_bytes / 1e6:.1f} MB -> {report.stored_bytes / 1e6:.1f} MB "
        f"in {report.seconds:.1f} s"
    )
    return "\n".join(lines)


def _progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
