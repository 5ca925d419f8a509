"""Grammars that make a model call a tool."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from tests.unit.server.conftest import MakeTokenizer

from edge_infer.grammar import GrammarCompiler, GrammarError
from edge_infer.server.events import ContentDelta, ToolCallArguments, ToolCallStart
from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.parsing.call_grammar import (
    parameters_schema,
    tool_call_structured_outputs,
    tools_fault,
)
from edge_infer.server.parsing.output_format import OutputFormat
from edge_infer.server.parsing.output_parser import OutputParser
from edge_infer.text import Tokenizer

THINK = ("<think>", "</think>")
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8, "description": 'é "quoted" \\ /'},
        "code": {"type": "string", "pattern": "^[a-z]{2}/[0-9]$"},
        "unit": {"type": "string", "enum": ["C", "°F"]},
        "fixed": {"const": "x"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "where": {"$ref": "#/$defs/point"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["city", "unit", "code", "where"],
    "$defs": {
        "point": {
            "type": "object",
            "properties": {"x": {"type": "boolean"}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}


def tool(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


TOOLS = [tool("get_weather", PARAMETERS), tool("now")]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
SCHEMAS = {"get_weather": PARAMETERS, "now": {"maxProperties": 0}}


@pytest.fixture
def tokenizer(make_tokenizer: MakeTokenizer) -> Tokenizer:
    return make_tokenizer("", special=("<tool_call>", "</tool_call>", "</arg_value>"))


def generate(tokenizer: Tokenizer, outputs: Any, seed: int, start: str = "") -> str:
    """A random text of the grammar, with long strings unlikely."""
    compiled = GrammarCompiler(tokenizer, tokenizer.vocab_size).compile(outputs)
    matcher = compiled.matcher()
    chance = random.Random(seed)
    ids = tokenizer.encode(start, add_special_tokens=False)
    for token_id in ids:
        matcher.accept(token_id)
    while not matcher.is_terminated:
        logits = np.zeros(tokenizer.vocab_size, np.float32)
        matcher.mask(logits)
        allowed = np.flatnonzero(logits == 0).tolist()
        closing = [i for i in allowed if tokenizer.token_bytes(i) in (b"<", b'"', b"}", b"\n")]
        choices = closing if closing and chance.random() < 0.3 else allowed
        ids.append(chance.choice(choices))
        matcher.accept(ids[-1])
        assert len(ids) < 20_000
    ends = tokenizer.eos_token_ids
    return tokenizer.decode([i for i in ids if i not in ends], skip_special_tokens=False)


def calls_of(form: OutputFormat, text: str) -> list[tuple[str, Any]]:
    parser = OutputParser(
        form, {t["function"]["name"]: t["function"].get("parameters") or {} for t in TOOLS}
    )
    calls: list[list[str]] = []
    for event in [*parser.push(text), *parser.finish()]:
        assert not isinstance(event, ContentDelta), text
        if isinstance(event, ToolCallStart):
            calls.append([event.name, ""])
        elif isinstance(event, ToolCallArguments):
            calls[-1][1] += event.text
    return [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("notation", ["hermes", "llama3", "spark"])
def test_every_text_of_the_grammar_is_valid_calls(
    tokenizer: Tokenizer, notation: Any, special: bool
) -> None:
    markers = ("<tool_call>", "</tool_call>", "</arg_value>") if special else ()
    ids = {marker: tokenizer.token_id(marker) for marker in markers}
    form = OutputFormat(notation, special_ids=ids)  # type: ignore[arg-type]
    if not special:
        tokenizer.special_token_ids = frozenset()
    found = 0
    for seed in range(3):
        for choice, parallel in (("required", True), ("required", False), (NAMED, True)):
            outputs = tool_call_structured_outputs(form, TOOLS, choice, parallel)
            calls = calls_of(form, generate(tokenizer, outputs, seed))
            assert calls
            if not parallel or choice == NAMED:
                assert len(calls) == 1
            if choice == NAMED:
                assert calls[0][0] == "get_weather"
            for name, arguments in calls:
                jsonschema.validate(arguments, SCHEMAS[name])
            found += len(calls)
    assert found > 9  # somewhere several calls


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("notation", ["hermes", "spark"])
def test_what_strict_tools_leave_free(tokenizer: Tokenizer, notation: Any, special: bool) -> None:
    ids = {"<tool_call>": tokenizer.token_id("<tool_call>")} if special else {}
    form = OutputFormat(notation, special_ids=ids)  # type: ignore[arg-type]
    tokenizer.special_token_ids = frozenset(ids.values())  # type: ignore[arg-type]
    strict = {"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}
    outputs = tool_call_structured_outputs(form, [strict, TOOLS[1]], "auto", False)
    for seed in range(2):
        text = generate(tokenizer, outputs, seed, "Let me.\n<tool_call>")
        assert text.startswith("Let me.\n")
        ((name, arguments),) = calls_of(form, text.removeprefix("Let me.\n"))
        jsonschema.validate(arguments, SCHEMAS[name])
    outputs = tool_call_structured_outputs(form, [strict, TOOLS[1]], "auto", True)
    compiled = GrammarCompiler(tokenizer, tokenizer.vocab_size).compile(outputs)  # type: ignore[arg-type]
    (eos,) = tokenizer.eos_token_ids
    for text in ("", "No {call} at <all>.\n"):
        matcher = compiled.matcher()
        for token_id in [*tokenizer.encode(text, add_special_tokens=False), eos]:
            matcher.accept(token_id)


def test_no_grammar_without_strict_tools() -> None:
    strict = {"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}
    assert tool_call_structured_outputs(OutputFormat("hermes"), TOOLS, "auto", True) is None
    assert tool_call_structured_outputs(OutputFormat("llama3"), [strict], "auto", True) is None
    # what need not be called and need not be valid is not refused
    odd = tool("f", {"properties": {"a": {"not": {}}}})
    assert tool_call_structured_outputs(OutputFormat("hermes"), [strict, odd], "auto", True)


def test_it_begins_behind_the_reasoning(tokenizer: Tokenizer) -> None:
    tokenizer.special_token_ids = frozenset()
    form = OutputFormat("hermes", THINK, reasoning_opened=True, reasons=True)
    outputs = tool_call_structured_outputs(form, TOOLS, NAMED, True)
    assert outputs is not None
    assert outputs.after == "</think>"
    text = generate(tokenizer, outputs, 1, "Hm <tool_call>.</think>\n")
    ((name, arguments),) = calls_of(form, text)
    jsonschema.validate(arguments, SCHEMAS[name])
    unsure = OutputFormat("hermes", THINK)
    assert tool_call_structured_outputs(unsure, TOOLS, NAMED, True).after is None  # type: ignore[union-attr]


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_free_choices_force_nothing(choice: str) -> None:
    assert tool_call_structured_outputs(OutputFormat(), TOOLS, choice, True) is None


@pytest.mark.parametrize(
    ("notation", "parameters", "said"),
    [
        ("hermes", {"properties": {"a": {"not": {}}}}, "at #/properties/a/not"),
        ("hermes", {"type": "array"}, "at #/type"),
        ("spark", {"properties": {"a": {"not": {}}}}, "at #/properties/a/not"),
        ("spark", {"required": ["a"]}, "at #/required"),
        ("spark", {"anyOf": [{"required": ["a"]}]}, "at #/anyOf"),
        (
            "spark",
            {"properties": {"a": {"type": ["string", "integer"], "minimum": 2}}},
            "at #/properties/a/minimum",
        ),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_named(
    notation: Any, parameters: dict[str, Any], said: str
) -> None:
    with pytest.raises(ParameterError, match=said) as error:
        tool_call_structured_outputs(
            OutputFormat(notation), [*TOOLS, tool("f", parameters)], "required", True
        )
    assert error.value.param == "tools[2].function.parameters"
    assert error.value.code == "invalid_grammar"


def test_the_tool_a_compiler_refuses_is_found() -> None:
    def refuse(schema: Any) -> None:
        if "required" in schema:
            raise GrammarError("json_schema at #: no")

    error = tools_fault([tool("now"), *TOOLS], refuse, GrammarError("grammar: no"))
    assert error.param == "tools[1].function.parameters"
    assert str(error) == "tools[1].function.parameters at #: no"
    assert tools_fault([tool("now")], refuse, GrammarError("too long")).param == "tools"


def test_arguments_are_those_of_the_schema() -> None:
    assert parameters_schema({"name": "f"})["additionalProperties"] is False
    named = parameters_schema({"parameters": {"properties": {"a": {}}}})
    assert named == {"type": "object", "properties": {"a": {}}, "additionalProperties": False}
    free = {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}}
    assert parameters_schema({"parameters": free}) == free
