"""A tool call written as a JSON object, read as its text comes."""

from __future__ import annotations

import json
from collections.abc import Container

from edge_infer.server.parsing.json_scanner import JsonFault, ObjectScanner, strict_json

_ARGUMENTS = ("arguments", "parameters")


class JsonCall:
    """Reads `{"name": ..., "arguments": {...}}`, whose arguments may be called parameters.

    A call has started once it has the name of a tool and an object of arguments has begun.

    name: the tool's name, once known.
    started: whether this is a call for certain, so that its arguments may be given away.
    complete: whether the object has ended.
    """

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        self._scanner = ObjectScanner()
        self._key: str | None = None  # the member with the arguments
        self._streams = False  # whether they are an object
        self._has_ended = False  # a second member of that key does not count
        self._pieces: list[str] = []  # of the arguments that were not given away yet
        self.name: str | None = None
        self.started = False

    @property
    def complete(self) -> bool:
        return self._scanner.complete

    def push(self, character: str) -> str:
        """Take one character; returns the arguments' text that may be given away by now.

        Raises JsonFault when this is no call of a known tool, or no JSON any more; the character
        was not taken then.
        """
        scanner = self._scanner
        text = scanner.push(character)
        if self.name is None and "name" in scanner.finished:
            self.name = self._known_name(scanner.finished["name"])
        if text and self._key is None and scanner.key in _ARGUMENTS:
            self._key = scanner.key
            self._streams = character == "{"
        if text and scanner.key == self._key and not self._has_ended:
            self._pieces.append(text)
        self._has_ended = self._key in scanner.finished
        if scanner.complete:
            self._end()
        elif self.name is not None and self._streams:
            self.started = True
        return self._given() if self.started else ""

    def _known_name(self, text: str) -> str:
        name = json.loads(text)
        if not isinstance(name, str) or name not in self._names:
            raise JsonFault(f"{text} is not the name of a tool")
        return name

    def _end(self) -> None:
        """What the whole object says, where the arguments were not streamed."""
        if self.name is None:
            raise JsonFault("the object names no tool")
        if not self.started:
            if not self._streams:
                value = "null" if self._key is None else self._scanner.finished[self._key]
                self._pieces = [_as_object(value)]
            self.started = True

    def _given(self) -> str:
        text = "".join(self._pieces)
        self._pieces.clear()
        return text


def _as_object(text: str) -> str:
    """Arguments that are no object: none at all, or an object written as a string."""
    value = json.loads(text)
    if value is None or value == "":
        return "{}"
    if isinstance(value, str):
        try:
            inner = strict_json(value)
        except (ValueError, RecursionError):
            inner = None
        if isinstance(inner, dict):
            return value
    raise JsonFault(f"arguments of the type {type(value).__name__}")
