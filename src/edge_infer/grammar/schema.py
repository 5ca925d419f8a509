"""JSON Schemas checked before they are compiled: what cannot be enforced is refused by name.

llguidance compiles the keywords in `SUPPORTED`; it refuses some others and ignores the rest. Here
every keyword is either supported, an annotation, or an error with its JSON pointer.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from edge_infer.grammar.errors import GrammarError
from edge_infer.grammar.formats import FORMATS

MAX_SCHEMA_BYTES = 256 << 10
MAX_SCHEMA_DEPTH = 64
MAX_PARTS_EXPLAINED = 300

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
    return {} if schema is True else _Check(schema).subschema(schema, ())


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
        return _with_format(checked, path)

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
        target = self._root
        for name in reference.split("/")[1:]:
            name = _unescaped(name)
            if isinstance(target, Mapping) and name in target:
                target = target[name]
            elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            else:
                raise _fault(path, f"is {_short(reference)}, which is not in the schema")


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

    `fault_of` compiles a schema and returns its fault, empty if it has none. Looks at no more than
    a few hundred parts, as this only explains.
    """
    path: tuple[str, ...] = ()
    part, fault = schema, fault_of(schema)
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    candidates = _parts(part, path)
    for _ in range(MAX_PARTS_EXPLAINED):
        inner_path, inner = next(candidates, (path, None))
        if inner is None:
            break
        inner_fault = fault_of(inner if isinstance(inner, bool) else {**shared, **inner})
        if inner_fault == fault or (inner_fault and _is_cause(fault, inner_path[len(path) :])):
            path, part, fault = inner_path, inner, inner_fault
            candidates = _parts(part, path)
    return f"{pointer(path)}: {' '.join(fault.split())}"


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


def pointer(path: tuple[str, ...]) -> str:
    """`path` as a JSON pointer in a URI fragment: "#" is the whole."""
    escaped = (str(name).replace("~", "~0").replace("/", "~1") for name in path)
    return "/".join(["#", *escaped])


def _unescaped(name: str) -> str:
    from urllib.parse import unquote

    return unquote(name).replace("~1", "/").replace("~0", "~")


def _fault(path: tuple[str, ...], message: str) -> GrammarError:
    return GrammarError(f"json_schema at {pointer(path)}: {message}")


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
