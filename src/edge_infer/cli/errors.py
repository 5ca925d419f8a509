"""How a command ends when something is refused: one clear line and exit code 1."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import typer
from rich.console import Console
from rich.markup import escape

from edge_infer.engine.errors import EngineError, MemoryRefusal


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """Print refusals instead of a traceback; faults of the program keep theirs."""
    try:
        yield
    except (ValueError, OSError, LookupError, MemoryRefusal, EngineError) as error:
        Console(stderr=True).print(
            f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True
        )
        raise typer.Exit(1) from error
