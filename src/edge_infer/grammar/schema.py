"""JSON Schemas checked before they are compiled: what cannot be enforced is refused by name.

llguidance compiles the keywords in `SUPPORTED`; it refuses some others and ignores the rest. Here
every keyword is either supported, an annotation, or an error with its JSON pointer.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from edge_infer.grammar.endless import is_endless
from edge_infer.grammar.errors import GrammarError
from edge_infer.grammar.faults import reworded
from edge_infer.grammar.formats import FORMATS
from edge_infer.grammar.pointers import pointer, resolve

MAX_SCHEMA_BYTES = 256 << 10
MAX_SCHEMA_DEPTH = 128  # keywords and names on the way to a part
MAX_EXPLAIN_SECONDS = 0.3
_FALSE = "Unsatisfiable schema: schema is false"

_SCHEMA = {"additionalProperties", "additionalItems"}
_SCHEMA_OR_LIST = {"items"}
_LIST = {"allOf", "anyOf", "oneOf", "prefixItems"}
_MAP = {"properties", "patternProperties", "$defs", "definitions"}
_PLAIN = {
    "$ref",
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "required",
    "type",
}
_COUNTS = {"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"}
_NUMBERS = {"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"}
SUPPORTED = _SCHEMA | _SCHEMA_OR_LIST | _LIST | _MAP | _PLAIN
# say nothing about which values are valid
ANNOTATIONS = {
    "$comment",
    "$schema",
    "default",
    "deprecated",
    "description",
    "discriminator",
    "example",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
}
# with this value they allow everything
_WITHOUT_EFFECT: dict[str, Any] = {
    "nullable": False,
    "unevaluatedItems": True,
    "unevaluatedProperties": True,
    "uniqueItems": False,
}


def checked_schema(schema: Mapping[str, Any] | bool) -> dict[str, Any]:
    """`schema` as JSON that can be compiled: annotations dropped, formats spelled as patterns.

    Raises GrammarError for a keyword that cannot be enforced, a reference out of the schema, or a
    schema larger or deeper than the limits.
    """
    size = len(json.dumps(schema, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    if size > MAX_SCHEMA_BYTES:
        raise GrammarError(f"json_schema has {size} bytes; it must have at most {MAX_SCHEMA_BYTES}")
    if schema is False:
        raise _fault((), "is false, which no value matches")
    checked = {} if schema is True else _Check(schema).subschema(schema, ())
    if is_endless(checked):
        raise _fault((), "no value is finite: a part needs itself without end")
    return checked


class _Check:
    def __init__(self, root: Any) -> None:
        self._root = root

    def subschema(self, schema: Any, path: tuple[str, ...]) -> Any:
        if isinstance(schema, bool):
            return schema
        if len(path) > MAX_SCHEMA_DEPTH:
            raise _fault(path, f"is deeper than {MAX_SCHEMA_DEPTH} levels")
        if not isinstance(schema, Mapping):
            raise _fault(path, f"is {_short(schema)}; a schema is an object, true or false")
        checked: dict[str, Any] = {}
        for keyword, value in schema.items():
            if not isinstance(keyword, str):
                raise _fault(path, f"has the key {keyword!r}; keys are strings")
            if self._has_effect(keyword, value, path):
                checked[keyword] = self._value(keyword, value, (*path, keyword))
        _check_least_names(checked, path)
        return _with_disjoint_constants(_with_format(checked, path))

    def _has_effect(self, keyword: str, value: Any, path: tuple[str, ...]) -> bool:
        if keyword in SUPPORTED:
            return True
        if keyword in ANNOTATIONS or (keyword == "$id" and not path):
            return False
        if keyword.startswith("x-") and keyword != "x-guidance":
            return False
        if keyword in _WITHOUT_EFFECT and value is _WITHOUT_EFFECT[keyword]:
            return False
        raise _fault((*path, keyword), f"the keyword {keyword!r} is not supported")

    def _value(self, keyword: str, value: Any, path: tuple[str, ...]) -> Any:
        if keyword in _SCHEMA or (keyword in _SCHEMA_OR_LIST and not isinstance(value, list)):
            return self.subschema(value, path)
        if keyword in _LIST or keyword in _SCHEMA_OR_LIST:
            if not isinstance(value, list | tuple):
                raise _fault(path, f"is {_short(value)}; it must be a list of schemas")
            return [self.subschema(item, (*path, str(index))) for index, item in enumerate(value)]
        if keyword in _MAP:
            if not isinstance(value, Mapping):
                raise _fault(path, f"is {_short(value)}; it must map names to schemas")
            return {name: self.subschema(item, (*path, name)) for name, item in value.items()}
        if keyword == "$ref":
            self._check_reference(value, path)
        if keyword in _COUNTS and isinstance(value, float) and value.is_integer():
            return int(value)
        if keyword in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise _fault(path, f"is {_short(value)}; it must be a number")
        if keyword == "required" and isinstance(value, list):
            return list(dict.fromkeys(value)) if all(isinstance(n, str) for n in value) else value
        return value

    def _check_reference(self, reference: Any, path: tuple[str, ...]) -> None:
        if not isinstance(reference, str):
            raise _fault(path, f"is {_short(reference)}; it must be a string")
        if reference != "#" and not reference.startswith("#/"):
            raise _fault(
                path,
                f"is {_short(reference)}; only references into this schema, "
                "'#' or '#/...', are supported",
            )
        if resolve(self._root, reference) is None:
            raise _fault(path, f"is {_short(reference)}, which is not in the schema")


def _check_least_names(schema: dict[str, Any], path: tuple[str, ...]) -> None:
    """Refuse a `minProperties` that a name given twice would not meet.

    Only the listed names are sure to differ from each other and from the rest.
    """
    least, required = schema.get("minProperties", 0), schema.get("required", [])
    if isinstance(least, int) and isinstance(required, list) and least > len(required) + 1:
        raise _fault(
            (*path, "minProperties"),
            f"is {least}; it must be at most one more than 'required' lists here, as names that "
            "are not listed may be repeated",
        )


def _with_disjoint_constants(schema: dict[str, Any]) -> dict[str, Any]:
    """`oneOf` constants that differ as `anyOf`, which is the same for them and can be compiled."""
    alternatives = schema.get("oneOf", [])
    if "anyOf" in schema or not all(
        isinstance(part, Mapping) and part.keys() <= {"const", "enum", "type"}
        for part in alternatives
    ):
        return schema
    values: list[str] = []
    for part in alternatives:
        if "const" not in part and not isinstance(part.get("enum"), list):
            return schema
        own = part.get("enum", []) if "const" not in part else [part["const"]]
        values += {_canonical(value) for value in own}
    if len(values) != len(set(values)):
        return schema
    return {"anyOf" if key == "oneOf" else key: value for key, value in schema.items()}


def _canonical(value: Any) -> str:
    """Equal for values that are equal in JSON, where 1 and 1.0 are."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    elif isinstance(value, list):
        return f"[{','.join(map(_canonical, value))}]"
    elif isinstance(value, Mapping):
        pairs = (f"{json.dumps(name)}:{_canonical(value[name])}" for name in sorted(value))
        return f"{{{','.join(pairs)}}}"
    return json.dumps(value)


def _with_format(schema: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """A format as the pattern that stands for it, beside the pattern there may be."""
    if "format" not in schema:
        return schema
    name = schema.pop("format")
    if not isinstance(name, str) or name not in FORMATS:
        raise _fault(
            (*path, "format"),
            f"the format {_short(name)} is not supported; these are: {', '.join(sorted(FORMATS))}",
        )
    if "pattern" not in schema:
        return {**schema, "pattern": FORMATS[name]}
    return {**schema, "allOf": [*schema.get("allOf", []), {"pattern": FORMATS[name]}]}


def explain_fault(schema: Any, fault_of: Callable[[Any], str]) -> str:
    """JSON pointer of the smallest part of `schema` that makes it faulty, and its fault.

    `fault_of` compiles a schema and returns its fault, empty if it has none. Looks at parts for no
    more than a fraction of a second, as this only explains.
    """
    deadline = time.monotonic() + MAX_EXPLAIN_SECONDS
    path: tuple[str, ...] = ()
    part, fault = schema, fault_of(schema)
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    candidates = _parts(part, path)
    while time.monotonic() < deadline:
        inner_path, inner = next(candidates, (path, None))
        if inner is None:
            break
        inner_fault = _FALSE if inner is False else ""
        if isinstance(inner, Mapping):
            inner_fault = fault_of({**shared, **inner})
        if inner_fault == fault or (inner_fault and _is_cause(fault, inner_path[len(path) :])):
            path, part, fault = inner_path, inner, inner_fault
            candidates = _parts(part, path)
    return f"{pointer(path)}: {reworded(fault)}"


def _is_cause(fault: str, inner: tuple[str, ...]) -> bool:
    """Whether llguidance's `fault` of a schema is that of its part at the path `inner`."""
    if fault == "Unsatisfiable schema: required item is unsatisfiable":
        return inner[0] in ("items", "prefixItems")
    return inner[0] == "properties" and fault == (
        f"Unsatisfiable schema: required property '{inner[1]}' is unsatisfiable"
    )


def _parts(schema: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every subschema below with its path, the outer ones first."""
    if not isinstance(schema, Mapping):
        return
    for keyword, value in schema.items():
        inner: list[tuple[tuple[str, ...], Any]] = []
        if keyword in _MAP:
            inner = [((keyword, name), item) for name, item in value.items()]
        elif keyword in SUPPORTED - _PLAIN and isinstance(value, list):
            inner = [((keyword, str(index)), item) for index, item in enumerate(value)]
        elif keyword in SUPPORTED - _PLAIN:
            inner = [((keyword,), value)]
        for below, item in inner:
            yield (*path, *below), item
            yield from _parts(item, (*path, *below))


def _fault(path: tuple[str, ...], message: str) -> GrammarError:
    return GrammarError(f"json_schema at {pointer(path)}: {message}")


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
