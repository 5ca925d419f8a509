"""`edge-infer inspect`: the real format and size of every tensor of a model."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from edge_infer.checkpoint.reader import TensorReport
from edge_infer.checkpoint.report import GroupReport, ModelReport, group_layers, inspect_model
from edge_infer.cli.errors import clear_errors
from edge_infer.hub.source import model_source


def inspect(
    model: Annotated[str, typer.Argument(help="A folder, a GGUF file, a hub id or a name.")],
    all_tensors: Annotated[
        bool, typer.Option("--all", help="A row for every tensor, not one for all layers.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a row per tensor.")] = False,
) -> None:
    """Show what MODEL stores: format, group size, shape, size and bits per weight (bpw)."""
    with clear_errors():
        report = inspect_model(model_source(model))
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
        return
    console = Console()
    console.print(f"{report.path} ({report.kind})", highlight=False, soft_wrap=True)
    table = tensor_table(report, all_tensors)
    # a narrow terminal wraps lines itself; rich would leave out the names
    unbounded = console.options.update(max_width=10_000)
    console.width = max(console.width, console.measure(table, options=unbounded).minimum)
    console.print(table)
    console.print(totals(report), highlight=False)


def tensor_table(report: ModelReport, all_tensors: bool) -> Table:
    """A rich table of the report's tensors, joined over layers unless `all_tensors`."""
    table = Table(box=None, pad_edge=False)
    table.add_column("tensor", overflow="fold")
    table.add_column("format", no_wrap=True)
    for name in ("shape", "MB", "bpw", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    if all_tensors:
        groups = [GroupReport(row.name, row, 1, row.nbytes) for row in report.rows]
    else:
        groups = group_layers(report.rows)
    section = ""
    for group in groups:
        # Names of repeated layers are shown once, as the heading of their tensors.
        stem, star, rest = group.name.partition(".*.")
        heading = f"{stem}.* ({group.count} layers)" if star else ""
        if heading and heading != section:
            table.add_row(heading)
        section = heading
        table.add_row(
            f"  {rest}" if star else group.name,
            _format(group.first),
            "x".join(map(str, group.first.shape)),
            f"{group.nbytes / 1e6:.2f}",
            f"{group.bits_per_weight:.2f}",
            f"{100 * group.nbytes / max(1, report.nbytes):.1f}%",
        )
    return table


def totals(report: ModelReport) -> str:
    """One line for the whole and one for each format."""
    lines = [
        f"{len(report.rows)} tensors, {report.weights:,} weights, {report.nbytes:,} bytes, "
        f"{report.bits_per_weight:.3f} bits per weight"
    ]
    for name, (weights, nbytes) in report.by_format().items():
        share = 100 * nbytes / max(1, report.nbytes)
        lines.append(f"  {name}: {weights:,} weights, {nbytes:,} bytes, {share:.1f}%")
    return "\n".join(lines)


def _format(row: TensorReport) -> str:
    if not row.form:
        return row.format
    scales = "" if row.scale_type == "f16" else f" {row.scale_type}"
    form = "sym" if row.form == "symmetric" else row.form
    return f"{row.format} {form} g{row.group_size}{scales}"
