"""What every API asks of the names of its tools."""

from __future__ import annotations

from collections.abc import Sequence

from edge_infer.server.parameter_error import ParameterError


def check_tool_names(names: Sequence[str]) -> None:
    """Refuse two tools of one name."""
    if len(set(names)) != len(names):
        raise ParameterError("tools has two functions of the same name", param="tools")


def check_tool_choice(names: Sequence[str], chosen: str | None, *, forced: bool) -> None:
    """Refuse a choice that cannot be made.

    forced: whether a tool must be called. chosen: the one to call, or None for any.
    """
    if not forced:
        return
    if not names:
        raise ParameterError("tool_choice needs tools", param="tool_choice")
    if chosen is not None and chosen not in names:
        raise ParameterError(
            f"tool_choice names {chosen!r}; tools has {', '.join(names)}", param="tool_choice.name"
        )
