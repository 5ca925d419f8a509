"""Grammars that make a model call a tool, in its own notation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edge_infer.grammar import GrammarError, StructuredOutputs
from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.parsing.lark import json_rule, literal, marker_rule, text_before
from edge_infer.server.parsing.output_format import TOOL_CALL, OutputFormat
from edge_infer.server.parsing.spark_grammar import spark_body

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

    A named tool is called once. With `auto` the answer is free, but where one of the tools is
    `strict` every call in it is valid; not so in Llama 3's notation, where the beginning of a call
    is no different from that of other JSON. Behind the model's reasoning, where it has some.

    None for what needs no grammar. Raises ParameterError for a schema that cannot be enforced.
    """
    free = tool_choice == "auto"
    strict = any(tool["function"].get("strict") for tool in tools)
    if tool_choice == "none" or (free and (not strict or form.call_format == "llama3")):
        return None
    named = None if isinstance(tool_choice, str) else tool_choice["function"]["name"]
    rules: list[str] = []
    bodies: list[str] = []
    for index, tool in enumerate(tools):
        if named is None or tool["function"]["name"] == named:
            rules += _body(form, index, tool["function"], free=free)
            bodies.append(f"body{index}")
    many = parallel and named is None
    start = _free_start(form, many=many) if free else _forced_start(form, many=many)
    grammar = "\n".join([*start, f"body: {' | '.join(bodies)}", *dict.fromkeys(rules)])
    after = form.reasoning[1] if form.reasons and form.reasoning is not None else None
    return StructuredOutputs(grammar=grammar, after=after)


def _forced_start(form: OutputFormat, *, many: bool) -> list[str]:
    """Nothing but calls."""
    llama3 = form.call_format == "llama3"
    call = "body" if llama3 else f"{marker_rule(form, TOOL_CALL[0])} body"
    separator = '"; "' if llama3 else r'"\n"'
    more = f" ({separator} call){{0,{MAX_FORCED_CALLS - 1}}}" if many else ""
    space = r"/\n{0,2}/ " if form.reasons else ""
    return [f"start: {space}call{more}", f"call: {call}"]


def _free_start(form: OutputFormat, *, many: bool) -> list[str]:
    """Text, in which the marker of a call is followed by a call."""
    opening, text = text_before(form, TOOL_CALL[0])
    start = "call* TEXT?" if many else "TEXT? | call"
    return [f"start: {start}", f"call: {opening[0]} body", *opening[1:], f"TEXT: {text}"]


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


def _body(form: OutputFormat, index: int, function: Mapping[str, Any], *, free: bool) -> list[str]:
    """The rule `body<index>`, a call behind its marker, and those it needs."""
    try:
        schema = parameters_schema(function)
        if form.call_format == "spark":
            return spark_body(form, index, function["name"], schema)
        arguments = json_rule(schema)
    except GrammarError as error:
        # What need not be called and need not be valid need not be refused.
        if not free or function.get("strict") or form.call_format == "spark":
            raise schema_error(index, error) from error
        arguments = json_rule({"type": "object"})
    name = json.dumps(function["name"])
    rule = f"args{index}: {arguments}"
    if form.call_format == "llama3":
        head = literal(f'{{"name": {name}, "parameters": ')
        return [f"body{index}: {head} args{index} {literal('}')}", rule]
    head, tail = literal(f'\n{{"name": {name}, "arguments": '), literal("}\n")
    return [f"body{index}: {head} args{index} {tail} {marker_rule(form, TOOL_CALL[1])}", rule]
