"""A tool call in Spark's notation, read as its text comes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from edge_infer.server.parsing.output_format import ARG_KEY, ARG_VALUE, TOOL_CALL
from edge_infer.server.parsing.spark_values import argument_types, string_piece, value_as_json

MAX_NAME = 256  # characters of a name, of a tool or an argument, with the space around it
_MEMBER = re.compile(rf"{ARG_KEY[0]}([^<]{{0,{MAX_NAME}}}){ARG_KEY[1]}\s*{ARG_VALUE[0]}")
_CALL_END = TOOL_CALL[1]


class SparkCall:
    """Reads `name<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`.

    The values become JSON of the types that the tool's schema asks for.

    name: the tool's name, once known.
    started: whether this is a call for certain, so that its arguments may be given away.
    complete: whether its end was read.
    failed: whether what comes next cannot belong to a call.
    """

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self._tools = tools
        self._text = ""
        self._given: list[str] = []
        self._members = 0
        self._types: frozenset[str] = frozenset()
        self._final = False
        # Consumes some of the text; returns False when it needs more for that.
        self._state: Callable[[], bool] = self._name
        self.name: str | None = None
        self.started = False
        self.complete = False
        self.failed = False

    def take(self, text: str, *, final: bool) -> tuple[str, str]:
        """The arguments' text that may be given away by now, and what of `text` is left.

        The next call goes on with what is left. `final`: there is no more text.
        """
        self._text, self._final = text, final
        while not (self.complete or self.failed) and self._state():
            pass
        given = "".join(self._given)
        self._given.clear()
        return given, self._text

    def _fail(self) -> bool:
        self.failed = True
        return False

    def _name(self) -> bool:
        end = self._text.find("<")
        if end < 0 and len(self._text) <= MAX_NAME and not self._final:
            return False
        name = self._text[: max(end, 0)].strip()
        if not 0 <= end <= MAX_NAME or name not in self._tools:
            return self._fail()
        self.name = name
        self._text = self._text[end:]
        self._state = self._member
        return True

    def _member(self) -> bool:
        text = self._text.lstrip()
        if text.startswith(_CALL_END):
            self.started = self.complete = True
            self._given.append("}" if self._members else "{}")
            self._text = text[len(_CALL_END) :]
            return False
        found = _MEMBER.match(text)
        if found is None:
            return False if not self._final and _may_become_member(text) else self._fail()
        assert self.name is not None
        key = found[1].strip()
        self._types = argument_types(self._tools[self.name], key)
        self.started = True
        opening = ", " if self._members else "{"
        quote = '"' if self._types == {"string"} else ""
        self._given.append(f"{opening}{json.dumps(key, ensure_ascii=False)}: {quote}")
        self._members += 1
        self._text = text[found.end() :]
        self._state = self._value
        return True

    def _value(self) -> bool:
        end = self._text.find(ARG_VALUE[1])
        if end >= 0:
            text, self._text = self._text[:end], self._text[end + len(ARG_VALUE[1]) :]
            if self._types == {"string"}:
                self._given.append(string_piece(text) + '"')
            else:
                self._given.append(value_as_json(text, self._types))
            self._state = self._member
            return True
        if self._types == {"string"}:
            sure = len(self._text) - (0 if self._final else begun(self._text, ARG_VALUE[1]))
            self._given.append(string_piece(self._text[:sure]))
            self._text = self._text[sure:]
        elif self._final:
            self._given.append(self._text)
            self._text = ""
        return False


def _may_become_member(text: str) -> bool:
    """Whether text that is neither an argument nor the call's end may become that."""
    if _CALL_END.startswith(text) or ARG_KEY[0].startswith(text):
        return True
    if not text.startswith(ARG_KEY[0]):
        return False
    key, bracket, rest = text[len(ARG_KEY[0]) :].partition("<")
    rest = bracket + rest
    if len(key) > MAX_NAME:
        return False
    if not rest.startswith(ARG_KEY[1]):
        return ARG_KEY[1].startswith(rest)
    return ARG_VALUE[0].startswith(rest[len(ARG_KEY[1]) :].lstrip())


def begun(text: str, marker: str) -> int:
    """How many characters at the end of `text` may be the beginning of `marker`."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if marker.startswith(text[-n:])), 0)
