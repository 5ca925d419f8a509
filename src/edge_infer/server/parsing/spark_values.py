"""Values of a Spark call, which are plain text, as JSON of the types their schema asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edge_infer.grammar.pointers import resolve
from edge_infer.server.parsing.json_scanner import strict_json

_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_MAX_REFERENCES = 16


def argument_types(parameters: Mapping[str, Any], name: str) -> frozenset[str]:
    """JSON types the parameter `name` may have; empty when its schema does not say."""
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping) or name not in properties:
        return frozenset()
    return _types(properties[name], parameters, _MAX_REFERENCES)


def _types(schema: Any, root: Mapping[str, Any], references: int) -> frozenset[str]:
    if not isinstance(schema, Mapping):
        return frozenset()
    if isinstance(reference := schema.get("$ref"), str) and references:
        return _types(resolve(root, reference), root, references - 1)
    given = schema.get("type")
    if isinstance(given, str):
        return frozenset((given,))
    if isinstance(given, list):
        return frozenset(kind for kind in given if isinstance(kind, str))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return frozenset(map(_kind, values))
    for keyword in ("anyOf", "oneOf"):
        if isinstance(parts := schema.get(keyword), list) and parts and references:
            kinds = [_types(part, root, references - 1) for part in parts]
            return frozenset().union(*kinds) if all(kinds) else frozenset()
    return frozenset()


def value_as_json(text: str, types: frozenset[str]) -> str:
    """The JSON for a value written as `text`: of one of the types where that is possible."""
    try:
        kind = _kind(strict_json(text))
    except (ValueError, RecursionError):
        return _string(text)
    fits = kind in types or (kind == "integer" and "number" in types)
    # strings are written without quotes, so what has quotes is one only where none is asked for
    return _string(text) if "string" in types and (kind == "string" or not fits) else text.strip()


def string_piece(text: str) -> str:
    """A piece of a string's inside."""
    return _string(text)[1:-1]


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else _KINDS[type(value)]
