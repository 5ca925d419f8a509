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

from edge_infer.checkpoint.convert import convert
from edge_infer.checkpoint.plan import QuantizeOptions
from edge_infer.cli.errors import clear_errors
from edge_infer.hub.source import model_source


def quantize(
    src: Annotated[
        str, typer.Argument(help="A Hugging Face folder, a GGUF file, a hub id or a name.")
    ],
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

        report = convert(model_source(src), dst, options, force=force, progress=show)
    typer.echo(report.summary())


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
