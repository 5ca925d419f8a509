"""Pieces of grammars in llguidance's dialect of Lark."""

from __future__ import annotations

import json
from typing import Any

from edge_infer.grammar.schema import checked_schema
from edge_infer.server.parsing.output_format import OutputFormat

# JSON as models write it: on one line, without long runs of spaces.
_OPTIONS = {"whitespace_pattern": r"[\x20]?", "lenient": False}


def literal(text: str) -> str:
    """`text` itself."""
    return json.dumps(text)


def marker_rule(form: OutputFormat, marker: str) -> str:
    """A marker, which may be a special token."""
    token_id = form.special_ids.get(marker)
    return literal(marker) if token_id is None else f"<[{token_id}]>"


def json_rule(schema: dict[str, Any]) -> str:
    """JSON that matches a schema. Raises GrammarError for one that cannot be enforced."""
    return f"%json {json.dumps({**checked_schema(schema), 'x-guidance': _OPTIONS})}"
