"""A JSON object read as its text comes, one character at a time."""

from __future__ import annotations

import json
import re
from typing import Any

_SPACE = " \t\n\r"
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_CHARACTERS = frozenset("+-.0123456789eE")
_WORDS = ("true", "false", "null")
_ESCAPED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
MAX_DEPTH = 256
MAX_NUMBER = 256  # characters; each of them has the whole number checked


def strict_json(text: str) -> Any:
    """The value of a JSON text, which NaN and Infinity are not. Raises ValueError."""
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


class JsonFault(ValueError):
    """The text is not the beginning of a JSON object."""


class ObjectScanner:
    """Checks the text of one JSON object and tells its members apart.

    `push` takes characters until the object ends. Control characters inside strings, which JSON
    forbids but models write, are escaped.

    complete: whether the object has ended.
    key: the member of the object the last character belongs to, once its value has begun.
    finished: the text of every member that has ended, by its key; the first of equal keys counts.
    """

    def __init__(self) -> None:
        self.complete = False
        self.key: str | None = None
        self.finished: dict[str, str] = {}
        self._open: list[str] = []  # the brackets that are open
        self._expect = "{"  # what may come next: { k(ey) K(ey or end) : v(alue) V(alue or end) ,
        self._atom: list[str] | None = None  # the string, number or word being read
        self._kind = ""  # of the atom: s(tring), n(umber), w(ord)
        self._escape = 0  # characters of an escape sequence still to come; -1 after a backslash
        self._value: list[str] = []  # of the member being read

    def push(self, character: str) -> str:
        """Take one character; returns it as it belongs to the member's value, else "".

        Raises JsonFault; the character was not taken then.
        """
        if self.complete:
            raise JsonFault("the object has ended")
        if self._atom is not None and self._kind != "s":
            if character in _NUMBER_CHARACTERS or character.isalpha():
                if len(self._atom) == MAX_NUMBER:
                    raise JsonFault(f"a number of more than {MAX_NUMBER} characters")
                self._atom.append(character)
                self._check_atom()
                return self._kept(character)
            self._end_atom()
        if self._atom is not None:
            return self._in_string(character)
        return self._between(character)

    def _in_string(self, character: str) -> str:
        assert self._atom is not None
        is_key = self._expect == ":"
        if self._escape > 0:
            if character not in "0123456789abcdefABCDEF":
                raise JsonFault(f"{character!r} in a \\u escape")
            self._escape -= 1
        elif self._escape == -1:
            if character not in '"\\/bfnrtu':
                raise JsonFault(f"{character!r} after a backslash")
            self._escape = 4 if character == "u" else 0
        elif character == "\\":
            self._escape = -1
        elif character < " ":
            character = _ESCAPED.get(character, f"\\u{ord(character):04x}")
        elif character == '"':
            self._atom.append(character)
            text, self._atom = "".join(self._atom), None
            if not is_key:
                return self._kept(character, ends=len(self._open) == 1)
            if len(self._open) == 1:
                self.key, self._value = json.loads(text), []
                return ""
            return self._kept(character)
        self._atom.append(character)
        return "" if is_key and len(self._open) == 1 else self._kept(character)

    def _between(self, character: str) -> str:
        depth = len(self._open)
        if character in _SPACE:
            return self._kept(character) if depth > 1 else ""
        expect = self._expect
        if character == '"' and expect in "kKvV":
            self._atom, self._kind = [character], "s"
            if expect in "kK":
                self._expect = ":"
                return self._kept(character) if depth > 1 else ""
            self._expect = ","
        elif character in "{[" and (expect in "vV" or (expect == "{" and character == "{")):
            if depth >= MAX_DEPTH:
                raise JsonFault(f"nested deeper than {MAX_DEPTH}")
            self._open.append(character)
            self._expect = "K" if character == "{" else "V"
            if depth == 0:
                return ""
        elif character in "}]" and depth and expect in ",KV":
            return self._close(character)
        elif character == "," and expect == ",":
            self._expect = "k" if self._open[-1] == "{" else "v"
            if depth == 1:
                return ""
        elif character == ":" and expect == ":":
            self._expect = "v"
            if depth == 1:
                return ""
        elif expect in "vV" and (character == "-" or character.isdigit() or character in "tfn"):
            self._atom = [character]
            self._kind = "w" if character in "tfn" else "n"
            self._expect = ","
            self._check_atom()
        else:
            raise JsonFault(f"unexpected {character!r}")
        return self._kept(character)

    def _close(self, character: str) -> str:
        if self._open[-1] != ("{" if character == "}" else "["):
            raise JsonFault(f"unexpected {character!r}")
        self._open.pop()
        self._expect = ","
        if not self._open:
            self.complete = True
            return ""
        return self._kept(character, ends=len(self._open) == 1)

    def _kept(self, text: str, *, ends: bool = False) -> str:
        """Add text to the value of the member; `ends` when it is complete."""
        self._value.append(text)
        if ends:
            assert self.key is not None
            self.finished.setdefault(self.key, "".join(self._value))
            self._value = []
        return text

    def _check_atom(self) -> None:
        """Refuse a number or word as soon as nothing could make it valid."""
        assert self._atom is not None
        text = "".join(self._atom)
        if self._kind == "w":
            if not any(word.startswith(text) for word in _WORDS):
                raise JsonFault(f"{text!r} is no value")
        elif not any(_NUMBER.fullmatch(text + rest) for rest in ("", "0", "00", ".0", "+0")):
            self._atom.pop()
            raise JsonFault(f"{text!r} is no number")

    def _end_atom(self) -> None:
        assert self._atom is not None
        text = "".join(self._atom)
        valid = text in _WORDS if self._kind == "w" else _NUMBER.fullmatch(text)
        if not valid:
            raise JsonFault(f"{text!r} is no value")
        self._atom = None
        if len(self._open) == 1:
            self._kept("", ends=True)
