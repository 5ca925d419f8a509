"""How a command ends when something is refused: one clear line and exit code 1."""

from __future__ import annotations

import contextlib
import os
import sys
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
    except BrokenPipeError as error:  # the reader has enough, as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from error
    except KeyboardInterrupt as error:
        Console(stderr=True).print("interrupted")
        raise typer.Exit(130) from error
    except (ValueError, OSError, LookupError, MemoryRefusal, EngineError) as error:
        Console(stderr=True).print(
            f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True
        )
        raise typer.Exit(1) from error
