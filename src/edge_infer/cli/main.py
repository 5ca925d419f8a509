"""The command line: one file per command, registered here."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from edge_infer import __version__
from edge_infer.cli.bench import bench
from edge_infer.cli.chat import chat
from edge_infer.cli.doctor import doctor
from edge_infer.cli.inspect import inspect
from edge_infer.cli.pull import pull
from edge_infer.cli.quantize import quantize
from edge_infer.cli.run import run
from edge_infer.cli.serve import serve


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"edge-infer {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="edge-infer",
    help="Models on this CPU: 4-bit weights, planned memory, numbers you can trust.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=False)
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show it."),
    ] = False,
) -> None:
    """Models on this CPU: 4-bit weights, planned memory, numbers you can trust."""


app.command()(run)
app.command()(chat)
app.command()(serve)
app.command()(bench)
app.command()(quantize)
app.command()(inspect)
app.command()(pull)
app.command()(doctor)

# Streams that were closed (`>&-`) are None; what is written to them is dropped.
sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (for the whole run)
sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
# A terminal that cannot show a character shows a mark; the answer goes on.
if hasattr(sys.stdout, "reconfigure"):
    sys.stdout.reconfigure(errors="replace")
