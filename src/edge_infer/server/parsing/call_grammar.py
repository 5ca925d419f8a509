"""Grammars that make a model call a tool, in its own notation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edge_infer.grammar import GrammarError, StructuredOutputs
from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.parsing.lark import json_rule, literal, marker_rule
from edge_infer.server.parsing.output_format import TOOL_CALL, OutputFormat
from edge_infer.server.parsing.spark_grammar import spark_call

MAX_FORCED_CALLS = 16  # in one answer
ToolChoice = str | Mapping[str, Any]

_OPEN_ENDED = {"additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf"}


def tool_call_structured_outputs(
    form: OutputFormat,
    tools: Sequence[Mapping[str, Any]],
    tool_choice: ToolChoice,
    parallel: bool,
) -> StructuredOutputs | None:
    """What makes the answer a call of a tool: for `required` and for a choice that names one.

    None for `auto` and `none`. A named tool is called once. Behind the model's reasoning, where it
    has some. Raises ParameterError for a schema that cannot be enforced.
    """
    if tool_choice in ("auto", "none"):
        return None
    named = None if isinstance(tool_choice, str) else tool_choice["function"]["name"]
    rules: list[str] = []
    calls: list[str] = []
    for index, tool in enumerate(tools):
        function = tool["function"]
        if named is not None and function["name"] != named:
            continue
        try:
            rules += _call(form, index, function["name"], parameters_schema(function))
        except GrammarError as error:
            raise schema_error(index, error) from error
        calls.append(f"call{index}")
    many = parallel and named is None
    separator = '"; "' if form.call_format == "llama3" else r'"\n"'
    more = f" ({separator} call){{0,{MAX_FORCED_CALLS - 1}}}" if many else ""
    space = r"/\n{0,2}/ " if form.reasons else ""
    grammar = "\n".join(
        [f"start: {space}call{more}", f"call: {' | '.join(calls)}", *rules],
    )
    after = form.reasoning[1] if form.reasons and form.reasoning is not None else None
    return StructuredOutputs(grammar=grammar, after=after)


def parameters_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments: an object; no others than those it names.

    Raises GrammarError.
    """
    given = function.get("parameters")
    if not given:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    kind = given.get("type", "object")
    if kind != "object":
        raise GrammarError(f"json_schema at #/type: {str(kind)[:80]!r}; arguments are an object")
    schema = {"type": "object", **given}
    if "properties" in schema and not schema.keys() & _OPEN_ENDED:
        schema["additionalProperties"] = False
    return schema


def schema_error(index: int, error: GrammarError) -> ParameterError:
    """The refusal of a tool's schema."""
    path = f"tools[{index}].function.parameters"
    message = str(error).removeprefix("json_schema ")
    return ParameterError(f"{path} {message}", param=path, code=error.code)


def tools_fault(
    tools: Sequence[Mapping[str, Any]],
    compile_schema: Callable[[Mapping[str, Any]], None],
    error: Exception,
) -> ParameterError:
    """The refusal of the tool whose schema `compile_schema` refuses too; else of all of them."""
    for index, tool in enumerate(tools):
        try:
            compile_schema(parameters_schema(tool["function"]))
        except GrammarError as fault:
            return schema_error(index, fault)
    return ParameterError(f"tools: {error}", param="tools", code="invalid_grammar")


def _call(form: OutputFormat, index: int, name: str, schema: dict[str, Any]) -> list[str]:
    """The rule `call<index>` and those it needs."""
    if form.call_format == "spark":
        return spark_call(form, index, name, schema)
    checked = json_rule(schema)
    arguments = "parameters" if form.call_format == "llama3" else "arguments"
    head, tail = f'{{"name": {json.dumps(name)}, "{arguments}": ', "}"
    body = f"args{index}: {checked}"
    if form.call_format == "llama3":
        return [f"call{index}: {literal(head)} args{index} {literal(tail)}", body]
    start, end = (marker_rule(form, marker) for marker in TOOL_CALL)
    inside = f"{literal(chr(10) + head)} args{index} {literal(tail + chr(10))}"
    return [f"call{index}: {start} {inside} {end}", body]
