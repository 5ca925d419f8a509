"""What compiles to what, what is refused, and that neither takes long or ends the process."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import llguidance
import numpy as np
import pytest

from edge_infer.grammar import (
    CompiledGrammar,
    GrammarCompiler,
    GrammarError,
    Matcher,
    StructuredOutputs,
)
from edge_infer.grammar.compiler import CACHED_GRAMMARS
from edge_infer.text import Tokenizer


def accepts(tokenizer: Tokenizer, grammar: CompiledGrammar, text: str) -> bool:
    """Whether `text`, cut into tokens of one byte, is all of a text of the grammar."""
    matcher = grammar.matcher()
    bytewise = [tokenizer.encode(chr(byte))[0] for byte in text.encode("ascii")]
    try:
        for token_id in [*bytewise, *sorted(tokenizer.eos_token_ids)[:1]]:
            matcher.accept(token_id)
    except GrammarError:
        return False
    return True


def refusal(compiler: GrammarCompiler, **form: Any) -> str:
    with pytest.raises(GrammarError) as error:
        compiler.compile(StructuredOutputs(**form))
    return str(error.value)


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        ({"regex": "a{2,3}|b"}, ["aa", "aaa", "b"], ["", "a", "aaaa", "bb"]),
        ({"choice": ["a.b", "a", "(x)|y", "{}"]}, ["a.b", "a", "(x)|y", "{}"], ["", "axb", "y"]),
        (
            {"grammar": 'start: sum\nsum: INT | sum "+" INT\nINT: /[0-9]+/'},
            ["1", "10+2+3"],
            ["", "+1", "1+"],
        ),
        ({"json_object": True}, ["{}", '{"a":[1,{}]}'], ["[]", "1", "", '{"a"}']),
        ({"json_schema": True}, ["{}", "[]", "1", '"a"', "null"], ["", "nul", "{"]),
        ({"json_schema": {"type": "integer", "minimum": 3}}, ["3", "12"], ["2", "3.5", "-4"]),
    ],
)
def test_forms(
    smollm2: Tokenizer,
    compiler: GrammarCompiler,
    form: dict[str, Any],
    good: list[str],
    bad: list[str],
) -> None:
    grammar = compiler.compile(StructuredOutputs(**form))
    assert [text for text in good if not accepts(smollm2, grammar, text)] == []
    assert [text for text in bad if accepts(smollm2, grammar, text)] == []


def test_choices_hold_no_operators(smollm2: Tokenizer, compiler: GrammarCompiler) -> None:
    marks = [chr(code) for code in range(33, 127) if not chr(code).isalnum()]
    choices = ["".join(pair) for pair in product(marks, repeat=2)]
    grammar = compiler.compile(StructuredOutputs(choice=choices))
    assert all(accepts(smollm2, grammar, choice) for choice in choices)
    assert not accepts(smollm2, grammar, "a")


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"regex": "a(b"}, "regex: regular expression 'a(b', character 1: unclosed group"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": "[^\\x00-\\U0010FFFF]"}, "no text matches it"),
        ({"regex": "a" * 70_000}, "regex has 70000 bytes; it must have at most 65536"),
        ({"choice": ["a" * 70_000]}, "choice has 70000 bytes; it must have at most 65536"),
        ({"grammar": "a" * 70_000}, "grammar has 70000 bytes; it must have at most 65536"),
        ({"regex": "a", "after": "b" * 2000}, "after has 2000 bytes; it must have at most 1024"),
        ({"grammar": "start: other"}, "grammar: line 1, column 8: "),
        ({"grammar": 'a: "b"'}, "grammar: "),
        ({"grammar": "start: start"}, "grammar: no text matches it"),
        ({"json_schema": {"minimum": float("nan")}}, "json_schema is not JSON"),
        ({"json_schema": {"type": "integer", "minimum": 10**400}}, "json_schema: number out of"),
        ({"json_schema": {"allOf": [{"type": "null"}, {"type": "integer"}]}}, "incompatible"),
        ({"json_schema": {"items": {"enum": []}, "minItems": 1, "type": "array"}}, "#/items: Uns"),
    ],
)
def test_refusals(compiler: GrammarCompiler, form: dict[str, Any], words: str) -> None:
    message = refusal(compiler, **form)
    assert words in message
    assert "\n" not in message
    assert len(message) < 1000


def test_a_cyclic_schema_is_no_json(compiler: GrammarCompiler) -> None:
    schema: dict[str, Any] = {}
    schema["items"] = schema
    assert "json_schema is not JSON" in refusal(compiler, json_schema=schema)


# what overwhelms an engine that backtracks, builds whole automata, or recurses
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PATTERNS = [{"pattern": f".*{letter}.{{{20 + at}}}"} for at, letter in enumerate(LETTERS)]
COSTLY: dict[str, dict[str, Any]] = {
    "nested repetition": {"regex": "^((a+)+)+$"},
    "ambiguous repetition": {"regex": "(a|aa|aaa)+b" * 50},
    "repetition of repetition": {"regex": "(([a-z]{1,1000}){1,1000}){1,1000}"},
    "exponential automaton": {"regex": "(a|b)*a(a|b){60}"},
    "wide classes": {"regex": r"(\p{L}\p{N}){500}"},
    "sequences of classes": {"regex": "[a-z]{1,500}" * 100},
    "deep groups": {"regex": "(" * 30_000 + ")" * 30_000},
    "deep rule": {"grammar": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000},
    "ambiguous grammar": {"grammar": 'start: start start | "a" | ""'},
    "wide grammar": {"grammar": "start: " + " | ".join(f'"{at}" start "b"' for at in range(2500))},
    "conjunction": {"json_schema": {"type": "string", "allOf": PATTERNS}},
    "alternatives multiplied": {
        "json_schema": {
            "allOf": [
                {"anyOf": [{"properties": {f"{name}{at}": {"const": 1}}} for name in "ab"]}
                for at in range(30)
            ]
        }
    },
    "references doubled": {
        "json_schema": {
            "$ref": "#/$defs/d0",
            "$defs": {
                **{f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(40)},
                "d40": {"type": "null"},
            },
        }
    },
    "long counts": {"json_schema": {"type": "array", "minItems": 10**9, "maxItems": 10**12}},
    "large multiple": {"json_schema": {"type": "integer", "multipleOf": 99_991}},
}


@pytest.mark.parametrize("name", COSTLY)
def test_costly_grammars_are_refused_or_followed_in_bounds(
    compiler: GrammarCompiler, name: str
) -> None:
    """Refused, or 40 random tokens of it are masked; CPU time of this process is bounded."""
    begun, memory = time.process_time(), resident_bytes()
    random = np.random.default_rng(0)
    try:
        matcher = compiler.compile(StructuredOutputs(**COSTLY[name])).matcher()
        for _ in range(40):
            if matcher.is_terminated:
                break
            matcher.accept(int(masked(matcher, random).argmax()))
    except GrammarError:
        pass  # in bounds as well
    assert time.process_time() - begun < 5
    assert resident_bytes() - memory < 300 << 20


def masked(matcher: Matcher, random: np.random.Generator) -> Any:
    logits = random.standard_normal(49152).astype(np.float32)
    matcher.mask(logits)
    return logits


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_after_a_trial_that_is_lost_others_succeed(compiler: GrammarCompiler) -> None:
    assert "too costly" in refusal(compiler, **COSTLY["conjunction"])
    assert compiler.compile(StructuredOutputs(regex="after a lost trial")) is not None


def test_a_panic_of_llguidance_is_a_refusal(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        pass

    def panic(*_: Any, **__: Any) -> None:
        raise PanicException("index out of bounds")

    source_of = llguidance.LLMatcher.grammar_from_regex
    monkeypatch.setattr(panic, "grammar_from_regex", source_of, raising=False)
    monkeypatch.setattr(llguidance, "LLMatcher", panic)
    assert "index out of bounds" in refusal(compiler, regex="panics")


def test_grammars_are_kept(smollm2: Tokenizer) -> None:
    compiler = GrammarCompiler(smollm2, 49152)
    first = compiler.compile(StructuredOutputs(regex="first"))
    assert compiler.compile(StructuredOutputs(regex="first")) is first
    assert compiler.compile(StructuredOutputs(regex="first", after="x")) is not first
    for at in range(CACHED_GRAMMARS):
        compiler.compile(StructuredOutputs(regex=f"other{at}"))
    assert compiler.compile(StructuredOutputs(regex="first")) is not first


def test_the_order_of_properties_is_that_of_the_schema(
    smollm2: Tokenizer, compiler: GrammarCompiler
) -> None:
    for names in ("ab", "ba"):
        schema = {
            "type": "object",
            "properties": {name: {"type": "null"} for name in names},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
        grammar = compiler.compile(StructuredOutputs(json_schema=schema))
        assert accepts(smollm2, grammar, json.dumps(dict.fromkeys(names)))
        assert not accepts(smollm2, grammar, json.dumps(dict.fromkeys(reversed(names))))


def test_threads_share_a_compiler(smollm2: Tokenizer) -> None:
    compiler = GrammarCompiler(smollm2, 49152)

    def check(number: int) -> bool:
        grammar = compiler.compile(StructuredOutputs(regex=f"n{number % 5}"))
        return accepts(smollm2, grammar, f"n{number % 5}")

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(40)))
