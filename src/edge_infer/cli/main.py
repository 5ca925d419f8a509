"""The command line: one file per command, registered here."""

from __future__ import annotations

import typer

from edge_infer.cli.bench import bench
from edge_infer.cli.chat import chat
from edge_infer.cli.doctor import doctor
from edge_infer.cli.inspect import inspect
from edge_infer.cli.pull import pull
from edge_infer.cli.quantize import quantize
from edge_infer.cli.run import run

app = typer.Typer(
    name="edge-infer",
    help="Models on this CPU: 4-bit weights, planned memory, numbers you can trust.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command()(run)
app.command()(chat)
app.command()(bench)
app.command()(quantize)
app.command()(inspect)
app.command()(pull)
app.command()(doctor)
