"""Schemas whose every value would be without end, such as a list whose tail is required."""

from collections.abc import Iterator, Mapping
from typing import Any

from edge_infer.grammar.errors import GrammarError
from edge_infer.grammar.pointers import resolve

MAX_REFERENCE_DEPTH = 100


def is_endless(schema: Mapping[str, Any]) -> bool:
    """Whether recursion alone keeps every value of `schema` from being finite.

    Looks at references, required properties and needed items of a schema that has been checked.
    Raises GrammarError when references lead to others too deep.
    """
    waiting = {reference: resolve(schema, reference) for reference in _references(schema)}
    ending: set[str] = set()
    # least fixed point: a reference ends once what it refers to ends by the ones already known
    for _ in range(MAX_REFERENCE_DEPTH):
        found = {name for name, part in waiting.items() if _ends(part, ending)}
        if not found:
            break
        ending |= found
        for name in found:
            del waiting[name]
    else:
        raise GrammarError(
            f"json_schema at #: references lead to references deeper than {MAX_REFERENCE_DEPTH}"
        )
    return not _ends(schema, ending)


def _ends(schema: Any, ending: set[str]) -> bool:
    if not isinstance(schema, Mapping):
        return True
    if "$ref" in schema and schema["$ref"] not in ending:
        return False
    if not all(_ends(part, ending) for part in schema.get("allOf", ())):
        return False
    for keyword in ("anyOf", "oneOf"):
        if schema.get(keyword) and not any(_ends(part, ending) for part in schema[keyword]):
            return False
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        return all(_ends(properties[name], ending) for name in required if name in properties)
    if schema.get("type") == "array":
        fixed, least = schema.get("prefixItems", []), schema.get("minItems", 0)
        needed = [*fixed[:least], *([schema.get("items", True)] if least > len(fixed) else [])]
        return all(_ends(part, ending) for part in needed)
    return True


def _references(node: Any) -> Iterator[str]:
    """Every `$ref`; also what only looks like one (a property of that name), which does no harm."""
    if isinstance(node, Mapping):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _references(item)
