"""JSON objects read one character at a time, against the json module."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_infer.server.parsing.json_scanner import (
    MAX_DEPTH,
    MAX_NUMBER,
    JsonFault,
    ObjectScanner,
    strict_json,
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('ab"\\é'), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text('abc"\\é', max_size=3), VALUES, max_size=4)
INDENTS = st.sampled_from([None, 0, 2])


def read(text: str) -> tuple[ObjectScanner, dict[str, str]]:
    """The scanner after the text, and what it gave for each member."""
    scanner, given_text = ObjectScanner(), dict[str, str]()
    for character in text:
        if piece := scanner.push(character):
            assert scanner.key is not None
            given_text[scanner.key] = given_text.get(scanner.key, "") + piece
    return scanner, given_text


@given(OBJECTS, INDENTS, st.booleans())
def test_members_of_any_object(value: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    scanner, pieces = read(text)
    assert scanner.complete
    assert {key: json.loads(member) for key, member in scanner.finished.items()} == value
    assert pieces == scanner.finished


@settings(max_examples=500)
@given(st.data())
def test_accepts_what_json_accepts(data: st.DataObject) -> None:
    """Objects with a character taken out, put in or doubled."""
    text = json.dumps(data.draw(OBJECTS), indent=data.draw(INDENTS))
    at = data.draw(st.integers(0, len(text) - 1))
    inserted = data.draw(
        st.sampled_from(['"', "{", "}", "[", "]", ",", ":", "1", "-", "e", "\\", ""])
    )
    text = text[:at] + inserted + text[at + data.draw(st.integers(0, 1)) :]
    try:
        scanner, _ = read(text)
    except JsonFault:
        accepted = False
    else:
        accepted = scanner.complete
    try:
        loaded = json.loads(text, strict=False)  # control characters are escaped
        expected = isinstance(loaded, dict) and not text.endswith(tuple(" \n"))
    except ValueError:
        expected = False
    assert accepted == expected, text


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("x", 0),
        (" [", 1),
        ('{"a": 01', 7),
        ('{"a": tru}', 9),
        ('{"a": 1.}', 8),
        ('{"a": "\\x', 8),
        ('{"a": "\\u00g', 11),
        ('{"a" 1', 5),
        ("{,", 1),
        ('{"a": 1,}', 8),
        ('{"a": [1}', 8),
        ('{"a": NaN', 6),
        ("{} ", 2),
    ],
)
def test_a_fault_comes_at_the_first_wrong_character(text: str, before: int) -> None:
    scanner = ObjectScanner()
    for character in text[:before]:
        scanner.push(character)
    with pytest.raises(JsonFault):
        scanner.push(text[before])


def test_the_first_of_equal_members_counts() -> None:
    assert read('{"a": 1, "a": 2}')[0].finished == {"a": "1"}


def test_control_characters_in_strings_are_escaped() -> None:
    assert json.loads(read('{"a": "x\n\x01"}')[0].finished["a"]) == "x\n\x01"


def test_bounds() -> None:
    with pytest.raises(JsonFault, match=str(MAX_DEPTH)):
        read('{"a": ' + "[" * MAX_DEPTH)
    with pytest.raises(JsonFault, match=str(MAX_NUMBER)):
        read('{"a": ' + "1" * (MAX_NUMBER + 1))
    read('{"a": ' + "1" * MAX_NUMBER)
    began = time.perf_counter()
    read('{"a": [' + ("1" * MAX_NUMBER + ", ") * 100 + '"' + "x" * 100_000)
    assert time.perf_counter() - began < 10


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-Infinity", "", "{"])
def test_strict_json(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        strict_json(text)
