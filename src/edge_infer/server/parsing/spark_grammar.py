"""The rules of a tool call in Spark's notation, whose values are plain text or JSON."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from edge_infer.grammar import GrammarError
from edge_infer.grammar.pointers import pointer
from edge_infer.grammar.schema import ANNOTATIONS, checked_schema
from edge_infer.server.parsing.lark import (
    ANY_TEXT,
    ending_with,
    json_rule,
    literal,
    marker_rule,
    sequence,
)
from edge_infer.server.parsing.output_format import ARG_KEY, ARG_VALUE, TOOL_CALL, OutputFormat
from edge_infer.server.parsing.spark_values import argument_types

_SHARED = ("$defs", "definitions")


def spark_body(form: OutputFormat, index: int, name: str, schema: dict[str, Any]) -> list[str]:
    """The rule `body<index>`, a call behind its marker, and those it needs.

    The arguments come in the order of the schema.

    Raises GrammarError for a schema that cannot be enforced in this notation.
    """
    checked_schema(schema)  # names what is wrong with its place in the whole schema
    properties: Mapping[str, Any] = schema.get("properties", {})
    required = schema.get("required", [])
    unknown = [key for key in required if key not in properties]
    others = {"anyOf", "oneOf", "allOf", "$ref", "patternProperties"} & schema.keys()
    if unknown or others:
        place, reason = ("required", unknown[0]) if unknown else (min(others), "it")
        raise _fault((place,), f"{reason} cannot be enforced in this model's notation of calls")
    rules: list[str] = []
    members: list[str] = []
    for number, key in enumerate(properties):
        rule = f"arg{index}_{number}"
        members.append(rule if key in required else f"{rule}?")
        opening = sequence(form, ARG_KEY[0], key, ARG_KEY[1], ARG_VALUE[0])
        value, terminals = _value(form, f"V{index}_{number}", key, schema)
        rules += [f"{rule}: {opening} {value}", *terminals]
    end = marker_rule(form, TOOL_CALL[1])
    return [f"body{index}: {literal(name)} {' '.join(members)} {end}", *rules]


def _value(
    form: OutputFormat, terminal: str, key: str, root: Mapping[str, Any]
) -> tuple[str, list[str]]:
    """A value with the marker behind it, and what that needs."""
    schema = root["properties"][key]
    end = marker_rule(form, ARG_VALUE[1])
    types = argument_types(root, key)
    if types and "string" not in types:
        shared = {name: root[name] for name in _SHARED if name in root}
        body = json_rule({**shared, **schema})
        rule = f"json_{hashlib.sha256(body.encode()).hexdigest()[:16]}"  # one for all alike
        return f"{rule} {end}", [f"{rule}: {body}"]
    if types == {"string"} and ("enum" in schema or "const" in schema):
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return f"({' | '.join(map(literal, values))}) {end}", []
    expressions = _expressions(key, schema, types)
    if expressions == [ANY_TEXT]:
        terminal = "VALUE"  # the same for all
    if ARG_VALUE[1] in form.special_ids:
        return f"{terminal} {end}", [f"{terminal}: {' & '.join(f'/{e}/' for e in expressions)}"]
    return terminal, [f"{terminal}: {ending_with(ARG_VALUE[1], expressions)}"]


def _expressions(key: str, schema: Any, types: frozenset[str]) -> list[str]:
    """Regular expressions that all must match a text. Raises GrammarError."""
    keywords = schema.keys() - ANNOTATIONS if isinstance(schema, Mapping) else set()
    known = {"type"}
    if types == {"string"}:
        known |= {"pattern", "minLength", "maxLength", "format"}
    elif "anyOf" in keywords:
        parts = schema["anyOf"]
        plain = all(isinstance(p, Mapping) and p.keys() - ANNOTATIONS <= known for p in parts)
        known |= {"anyOf"} if plain else set()
    if excess := sorted(keywords - known):
        raise _fault(
            ("properties", key, excess[0]), "cannot be enforced in this model's notation of calls"
        )
    if not isinstance(schema, Mapping):
        return [ANY_TEXT]
    checked = checked_schema({name: value for name, value in schema.items() if name in known})
    found = [ANY_TEXT]
    if checked.keys() & {"minLength", "maxLength"}:
        found = [f"(?s:.{{{checked.get('minLength', 0)},{checked.get('maxLength', '')}}})"]
    for part in (checked, *checked.get("allOf", [])):
        if "pattern" in part:
            found.append(_search(part["pattern"]))
    return found


def _search(pattern: str) -> str:
    """JSON Schema's patterns match anywhere in the text."""
    escaped = re.sub(r"(?<!\\)/", r"\\/", pattern)
    before = "" if escaped.startswith("^") else ANY_TEXT
    after = "" if escaped.endswith("$") and not escaped.endswith("\\$") else ANY_TEXT
    inner = escaped.removeprefix("^")
    return f"{before}(?:{inner[:-1] if not after else inner}){after}"


def _fault(path: tuple[str, ...], message: str) -> GrammarError:
    return GrammarError(f"json_schema at {pointer(path)}: {message}")
