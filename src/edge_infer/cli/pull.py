"""`edge-infer pull`: fetch and prepare a model, so that later commands start at once."""

from __future__ import annotations

from typing import Annotated

import typer

from edge_infer.cli.errors import clear_errors
from edge_infer.hub.source import resolve_model


def pull(
    model: Annotated[str, typer.Argument(help="A hub id org/name, a GGUF file or a name.")],
    revision: Annotated[
        str | None, typer.Option(help="A branch, tag or commit of a hub model.")
    ] = None,
) -> None:
    """Download MODEL (or convert its GGUF file) into the cache and say where it is."""
    with clear_errors():
        resolved = resolve_model(model, revision=revision)
    size = sum(file.stat().st_size for file in resolved.path.iterdir() if file.is_file())
    typer.echo(f"{resolved.origin}: {resolved.path} ({size / 1e6:.1f} MB)")
