"""Pieces of grammars in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from edge_infer.grammar.schema import checked_schema
from edge_infer.server.parsing.output_format import OutputFormat

ANY_TEXT = "(?s:.*)"
# JSON as models write it: on one line, without long runs of spaces.
_OPTIONS = {"whitespace_pattern": r"[\x20]?", "lenient": False}


def literal(text: str) -> str:
    """`text` itself."""
    return json.dumps(text)


def marker_rule(form: OutputFormat, marker: str) -> str:
    """A marker, which may be a special token."""
    token_id = form.special_ids.get(marker)
    return literal(marker) if token_id is None else f"<[{token_id}]>"


def sequence(form: OutputFormat, *texts: str) -> str:
    """Markers and other texts behind each other."""
    items: list[str] = []
    joined = ""
    for text in texts:
        if text in form.special_ids:
            items += (
                [literal(joined), marker_rule(form, text)] if joined else [marker_rule(form, text)]
            )
            joined = ""
        else:
            joined += text
    return " ".join([*items, literal(joined)] if joined else items)


def json_rule(schema: dict[str, Any]) -> str:
    """JSON that matches a schema. Raises GrammarError for one that cannot be enforced."""
    return f"%json {json.dumps({**checked_schema(schema), 'x-guidance': _OPTIONS})}"


def ending_with(marker: str, expressions: Sequence[str] = (ANY_TEXT,)) -> str:
    """A terminal: text that matches all the expressions, and the first marker behind it.

    They are one, as a terminal of text alone, which is greedy, would take the marker too.
    """
    end = _escaped(marker)
    parts = [f"/(?:{expression}){end}/" for expression in expressions]
    return " & ".join([*parts, f"~/{ANY_TEXT}{end}(?s:.+)/"])


def text_before(form: OutputFormat, marker: str) -> tuple[list[str], str]:
    """Any text that ends with the marker, as a rule's item and what it needs; text without it."""
    if marker in form.special_ids:
        return [f"TEXT? {marker_rule(form, marker)}"], "/(?s:.+)/"
    without = f"/(?s:.+)/ & ~/{ANY_TEXT}{_escaped(marker)}{ANY_TEXT}/"
    return ["OPENING", f"OPENING: {ending_with(marker)}"], without


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", "\\/")
