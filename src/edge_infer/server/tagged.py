"""A kind for objects whose `type` says which fields they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_infer.server.fields import Field, String, Table, wrong_type, wrong_value
from edge_infer.server.parameter_error import ParameterError


class Tagged:
    """Objects told apart by their `type`; itself a kind.

    types: each type with its fields besides `type`.
    refused: types that are known and cannot be served, with the reason.
    default: the type of an object that names none; without one, `type` must be given.
    """

    def __init__(
        self,
        types: Mapping[str, Mapping[str, Field]],
        *,
        refused: Mapping[str, str] | None = None,
        default: str | None = None,
    ) -> None:
        self._refused = dict(refused or {})
        self._default = default
        self._tables = {
            name: Table({"type": Field(String((name,)), required=name != default), **fields})
            for name, fields in types.items()
        }

    def parse(self, value: Any, param: str) -> dict[str, Any]:
        """The checked fields, always with `type`. Raises ParameterError."""
        if not isinstance(value, dict):
            raise wrong_type(value, param, "an object")
        path = f"{param}.type"
        name = value.get("type")
        if name is None:
            name = self._default
        if name is None:
            code = "missing_required_parameter"
            raise ParameterError(f"{path} is missing", param=path, code=code)
        if not isinstance(name, str):
            raise wrong_type(name, path, "a string")
        if (table := self._tables.get(name)) is not None:
            return {**table.parse(value, param), "type": name}
        if (reason := self._refused.get(name)) is not None:
            message = f"{path} is {name!r}, which is not supported: {reason}"
            raise ParameterError(message, param=path, code="unsupported_parameter")
        raise wrong_value(name, path, f"one of {', '.join(self._tables)}")

    def schema(self) -> dict[str, Any]:
        """Any of the types' schemas."""
        schemas = [table.schema() for table in self._tables.values()]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
