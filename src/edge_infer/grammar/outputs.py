"""What a request asks of the shape of its output, under vLLM's names."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

FORMS = ("json_schema", "json_object", "regex", "choice", "grammar")


@dataclass(frozen=True, kw_only=True)
class StructuredOutputs:
    """The shape the output must have: exactly one of the first five fields is given.

    Raises TypeError for a wrong type and ValueError for anything else wrong with a field; whether
    the schema, expression or grammar itself is sound shows when it is compiled.

    json_schema: a JSON Schema; `True` is any JSON value.
    json_object: any JSON object.
    regex: a regular expression the whole text matches.
    choice: the text is one of these strings.
    grammar: a context-free grammar in llguidance's dialect of Lark; its start rule is `start`.
    after: the text is free until this has been generated, such as the end of a model's reasoning;
        the sequence cannot end before it.
    """

    json_schema: Mapping[str, Any] | bool | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    after: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in FORMS if getattr(self, name) not in (None, False)]
        if self.json_schema is False:
            given.insert(0, "json_schema")
        if len(given) != 1:
            raise ValueError(
                f"structured_outputs has {' and '.join(given) or 'none of its forms'}; "
                f"exactly one of {', '.join(FORMS)} is expected"
            )
        if self.json_schema is not None and not isinstance(self.json_schema, Mapping | bool):
            raise TypeError(
                f"structured_outputs.json_schema is {_short(self.json_schema)}; "
                "it must be an object, true or false"
            )
        if not isinstance(self.json_object, bool):
            raise TypeError(
                f"structured_outputs.json_object is {_short(self.json_object)}; "
                "it must be true or false"
            )
        for name in ("regex", "grammar", "after"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise TypeError(
                    f"structured_outputs.{name} is {_short(value)}; it must be a string"
                )
            if value is not None:
                _check_unicode(name, value)
        if self.after == "":
            raise ValueError("structured_outputs.after is empty; one character is the least")
        if self.choice is not None:
            object.__setattr__(self, "choice", _choice(self.choice))

    @property
    def form(self) -> str:
        """Name of the field that is given."""
        if self.json_schema is not None:
            return "json_schema"
        return next(name for name in FORMS if getattr(self, name) not in (None, False))

    def cache_key(self) -> str:
        """Equal for equal requests. The order of a schema's properties counts: it is the output's.

        Raises ValueError, TypeError or RecursionError for a schema that is not JSON.
        """
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return json.dumps(values, allow_nan=False, ensure_ascii=False)


def _choice(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(
            f"structured_outputs.choice is {_short(value)}; it must be a list of strings"
        )
    if not value:
        raise ValueError("structured_outputs.choice is empty; one string is the least")
    for item in value:
        if not isinstance(item, str):
            raise TypeError(
                f"structured_outputs.choice contains {_short(item)}; it must be a list of strings"
            )
        if not item:
            raise ValueError("structured_outputs.choice contains an empty string")
        _check_unicode("choice", item)
    return tuple(value)


def _check_unicode(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"structured_outputs.{name} is not Unicode: {text[error.start]!r} "
            f"at character {error.start}"
        ) from error


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
