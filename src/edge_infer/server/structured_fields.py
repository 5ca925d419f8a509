"""The parameters that constrain an answer's form, under OpenAI's and vLLM's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_infer.server.errors import ApiError
from edge_infer.server.fields import (
    Anything,
    Array,
    Boolean,
    Either,
    Field,
    Map,
    Only,
    String,
    Table,
)
from edge_infer.server.limits import parse_json
from edge_infer.server.parameter_error import ParameterError

MAX_CHOICES = 1024
MAX_GRAMMAR_CHARACTERS = 256 * 1024

_SCHEMA = Map(Anything())
_SCHEMA_OR_TEXT = Either(((dict, _SCHEMA), (str, String())), "a JSON schema")
_PATTERN = String(max_length=MAX_GRAMMAR_CHARACTERS)
_CHOICE = Array(String(min_length=1), min_items=1, max_items=MAX_CHOICES)

STRUCTURED_FIELDS: dict[str, Field] = {
    "response_format": Field(
        Table(
            {
                "type": Field(
                    String(choices=("text", "json_object", "json_schema")), required=True
                ),
                "json_schema": Field(
                    Table(
                        {
                            "name": Field(String(min_length=1, max_length=64), required=True),
                            "description": Field(String()),
                            "schema": Field(_SCHEMA),
                            "strict": Field(Boolean(), "Accepted; schemas are always enforced"),
                        }
                    )
                ),
            }
        ),
        "What the answer's text must be",
    ),
    "structured_outputs": Field(
        Table(
            {
                "json": Field(_SCHEMA_OR_TEXT),
                "json_object": Field(Boolean()),
                "regex": Field(_PATTERN),
                "choice": Field(_CHOICE),
                "grammar": Field(_PATTERN, "Lark"),
                "structural_tag": Field(Only((), "use tools or grammar")),
            }
        ),
        "One constraint on the answer's text",
    ),
    "guided_json": Field(_SCHEMA_OR_TEXT, "As structured_outputs.json"),
    "guided_regex": Field(_PATTERN, "As structured_outputs.regex"),
    "guided_choice": Field(_CHOICE, "As structured_outputs.choice"),
    "guided_grammar": Field(_PATTERN, "As structured_outputs.grammar"),
}


def structured_outputs(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword `structured_outputs` of SamplingParams, or nothing. Raises ParameterError."""
    found = _constraints(values)
    if not found:
        return {}
    if len(found) > 1:
        names = " and ".join(found)
        raise ParameterError(
            f"{names} are given; an answer has one constraint", param=list(found)[1]
        )
    from edge_infer.grammar.outputs import StructuredOutputs  # imported by those who use it

    ((param, (kind, value)),) = found.items()
    if kind == "json":
        kind, value = "json_schema", _schema(param, value)
    try:
        return {"structured_outputs": StructuredOutputs(**{kind: value})}
    except (TypeError, ValueError) as error:
        raise ParameterError(str(error), param=param) from error


def _schema(param: str, value: Any) -> Any:
    """A JSON schema that may be given as text."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value.encode())
    except ApiError as error:
        raise ParameterError(f"{param}: {error.message}", param=param) from error


def _constraints(values: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """What constrains the answer: parameter to (kind, value)."""
    found: dict[str, tuple[str, Any]] = {}
    if (response_format := values.get("response_format")) is not None:
        found.update(_response_format(response_format))
    for kind, value in values.get("structured_outputs", {}).items():
        if value is not False:
            found[f"structured_outputs.{kind}"] = (kind, value)
    for name in ("json", "regex", "choice", "grammar"):
        if (value := values.get(f"guided_{name}")) is not None:
            found[f"guided_{name}"] = (name, value)
    return found


def _response_format(given: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    kind, inner = given["type"], given.get("json_schema")
    if kind == "json_schema":
        if inner is None:
            raise ParameterError(
                "response_format.json_schema is missing",
                param="response_format.json_schema",
                code="missing_required_parameter",
            )
        return {"response_format": ("json", inner.get("schema", {}))}
    if inner is not None:
        raise ParameterError(
            f"response_format.json_schema does not go with the type {kind!r}",
            param="response_format.json_schema",
        )
    return {"response_format": ("json_object", True)} if kind == "json_object" else {}
