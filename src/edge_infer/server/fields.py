"""Tables of a body's fields: what checks a request is also what the OpenAPI document says.

A kind parses a JSON value or refuses it, naming the parameter, the value and the limit. A table
reads a whole object. `null` counts as absent everywhere. Nothing is coerced, except that 2.0 is an
integer, as in JSON Schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, Protocol

from edge_infer.server.parameter_error import ParameterError

SHOWN_CHARACTERS = 80


class Kind(Protocol):
    """A type of JSON value with its limits."""

    def parse(self, value: Any, param: str) -> Any:
        """The value, checked. Raises ParameterError."""

    def schema(self) -> dict[str, Any]:
        """The same as a JSON schema."""


def shown(value: Any) -> str:
    """A value for an error message, cut when it is long."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def wrong_type(value: Any, param: str, expected: str) -> ParameterError:
    """The refusal of a value of another type."""
    message = f"{param} is {shown(value)}; it must be {expected}"
    return ParameterError(message, param=param, code="invalid_type")


def wrong_value(value: Any, param: str, limit: str) -> ParameterError:
    """The refusal of a value that is out of its limits."""
    return ParameterError(f"{param} is {shown(value)}; it must be {limit}", param=param)


def unsupported(param: str, reason: str) -> ParameterError:
    """The refusal of what is known and cannot be done."""
    return ParameterError(
        f"{param} is not supported: {reason}", param=param, code="unsupported_parameter"
    )


@dataclass(frozen=True)
class Anything:
    """Any JSON value."""

    def parse(self, value: Any, param: str) -> Any:  # noqa: ARG002 - the protocol's signature
        return value

    def schema(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Boolean:
    """true or false."""

    def parse(self, value: Any, param: str) -> bool:
        if not isinstance(value, bool):
            raise wrong_type(value, param, "true or false")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Integer:
    """An integer of low to high."""

    low: int
    high: int | None = None

    def parse(self, value: Any, param: str) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(value, param, "an integer")
        if value < self.low or (self.high is not None and value > self.high):
            limit = f"at least {self.low}" if self.high is None else f"{self.low} to {self.high}"
            raise wrong_value(value, param, limit)
        return value

    def schema(self) -> dict[str, Any]:
        bounds = {"minimum": self.low, "maximum": self.high}
        return {"type": "integer", **{k: v for k, v in bounds.items() if v is not None}}


@dataclass(frozen=True)
class Number:
    """A number of low, or above `above`, to high."""

    high: float
    low: float | None = None
    above: float | None = None

    def parse(self, value: Any, param: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(value, param, "a number")
        small = value < self.low if self.low is not None else value <= (self.above or 0.0)
        if small or value > self.high or not math.isfinite(value):
            least = f"at least {self.low}" if self.low is not None else f"more than {self.above}"
            raise wrong_value(value, param, f"{least} and at most {self.high}")
        return float(value)

    def schema(self) -> dict[str, Any]:
        least = {"minimum": self.low} if self.low is not None else {"exclusiveMinimum": self.above}
        return {"type": "number", **least, "maximum": self.high}


@dataclass(frozen=True)
class String:
    """A string, perhaps one of some."""

    choices: tuple[str, ...] | None = None
    min_length: int = 0
    max_length: int | None = None

    def parse(self, value: Any, param: str) -> str:
        if not isinstance(value, str):
            raise wrong_type(value, param, "a string")
        if self.choices is not None and value not in self.choices:
            raise wrong_value(value, param, f"one of {', '.join(self.choices)}")
        if len(value) < self.min_length:
            raise wrong_value(value, param, f"at least {self.min_length} characters long")
        if self.max_length is not None and len(value) > self.max_length:
            raise wrong_value(value, param, f"at most {self.max_length} characters long")
        return value

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string"}
        if self.choices is not None:
            schema["enum"] = list(self.choices)
        if self.min_length:
            schema["minLength"] = self.min_length
        if self.max_length is not None:
            schema["maxLength"] = self.max_length
        return schema


@dataclass(frozen=True)
class Array:
    """A list of one kind of items."""

    items: Kind
    min_items: int = 0
    max_items: int | None = None

    def parse(self, value: Any, param: str) -> list[Any]:
        if not isinstance(value, list):
            raise wrong_type(value, param, "an array")
        if len(value) < self.min_items:
            raise wrong_value(value, param, f"an array of at least {self.min_items} items")
        if self.max_items is not None and len(value) > self.max_items:
            raise ParameterError(
                f"{param} has {len(value)} items; it must have at most {self.max_items}",
                param=param,
            )
        return [self.items.parse(item, f"{param}[{index}]") for index, item in enumerate(value)]

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "array", "items": self.items.schema()}
        if self.min_items:
            schema["minItems"] = self.min_items
        if self.max_items is not None:
            schema["maxItems"] = self.max_items
        return schema


@dataclass(frozen=True)
class Map:
    """An object with any keys and one kind of values."""

    values: Kind
    max_items: int | None = None

    def parse(self, value: Any, param: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong_type(value, param, "an object")
        if self.max_items is not None and len(value) > self.max_items:
            raise ParameterError(
                f"{param} has {len(value)} keys; it must have at most {self.max_items}",
                param=param,
            )
        return {key: self.values.parse(item, f"{param}.{key}") for key, item in value.items()}

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object", "additionalProperties": self.values.schema()}
        if self.max_items is not None:
            schema["maxProperties"] = self.max_items
        return schema


@dataclass(frozen=True)
class Either:
    """One of several kinds, told apart by the JSON type of the value."""

    options: Sequence[tuple[type, Kind]]
    expected: str

    def parse(self, value: Any, param: str) -> Any:
        for kind_type, kind in self.options:
            if isinstance(value, kind_type):
                return kind.parse(value, param)
        raise wrong_type(value, param, self.expected)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [kind.schema() for _, kind in self.options]}


@dataclass(frozen=True)
class Only:
    """A parameter that is known, of which just these values can be served."""

    values: tuple[Any, ...]
    reason: str

    def parse(self, value: Any, param: str) -> Any:
        if not any(type(value) is type(allowed) and value == allowed for allowed in self.values):
            raise unsupported(param, self.reason)
        return value

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.values)} if self.values else {"type": "null"}


@dataclass(frozen=True)
class Field:
    """A parameter: its kind, whether it must be given, and what to say about it."""

    kind: Kind
    text: str = ""
    required: bool = False


@dataclass(frozen=True)
class Table:
    """The fields of an object; itself a kind. Unknown fields are refused unless `open`."""

    fields: Mapping[str, Field]
    open: bool = False
    unsupported: Mapping[str, str] = dataclass_field(default_factory=dict)  # name to reason

    def parse(self, value: Any, param: str) -> dict[str, Any]:
        return self.read(value, param=param)

    def read(
        self, body: Any, *, param: str = "", ignored: list[str] | None = None
    ) -> dict[str, Any]:
        """The checked values that are given and not null.

        Unknown fields are added to `ignored`, or refused when it is None.
        """
        if not isinstance(body, dict):
            raise wrong_type(body, param or "the body", "an object")
        prefix = f"{param}." if param else ""
        values: dict[str, Any] = {}
        for name, value in body.items():
            path = prefix + name
            if (field := self.fields.get(name)) is not None:
                if value is not None:
                    values[name] = field.kind.parse(value, path)
            elif self.open:
                values[name] = value
            elif name in self.unsupported:
                if value is not None:
                    raise unsupported(path, self.unsupported[name])
            elif ignored is None:
                raise ParameterError(
                    f"there is no parameter {shown(path)}", param=path, code="unknown_parameter"
                )
            else:
                ignored.append(path)
        for name, field in self.fields.items():
            if field.required and name not in values:
                raise ParameterError(
                    f"{prefix}{name} is missing",
                    param=prefix + name,
                    code="missing_required_parameter",
                )
        return values

    def schema(self) -> dict[str, Any]:
        required = [name for name, field in self.fields.items() if field.required]
        properties = {name: _described(field) for name, field in self.fields.items()}
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        if not self.open:
            schema["additionalProperties"] = False
        return schema


def _described(field: Field) -> dict[str, Any]:
    """A field's schema; one that may be left out may be null too."""
    schema = field.kind.schema()
    if not field.required and schema:
        if set(schema) == {"enum"}:
            schema = {"enum": [*schema["enum"], None]}
        elif schema.get("type") != "null":
            schema = {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "description": field.text} if field.text else schema
