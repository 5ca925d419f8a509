"""A corpus of JSON Schemas, and whether texts are valid by them.

`schemas.json` lists {"name", "schema"}: what people write, and what they should not. Those that
are refused have "refused": the JSON pointer that the refusal names.
"""

import datetime
import ipaddress
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import regex

SCHEMAS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "schemas.json").read_text(encoding="utf-8")
)
_LABEL = re.compile("[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_DURATION = re.compile(
    r"P(?!$)(\d+Y)?(\d+M)?(\d+W)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?", re.ASCII
)


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Any:
    """As in ECMA 262: \\d and \\w are ASCII, \\s is not, \\p{...} is known."""
    flags = regex.UNICODE if re.search(r"\\[sp]", pattern) else regex.ASCII
    if isinstance(instance, str) and not regex.search(pattern, instance, flags):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def _hostname(text: str) -> bool:
    return len(text) <= 253 and all(_LABEL.fullmatch(label) for label in text.split("."))


def _email(text: str) -> bool:
    local, _, host = text.rpartition("@")
    return 0 < len(local) <= 64 and _hostname(host)


def _uri(text: str) -> bool:
    from urllib.parse import urlsplit

    parts = urlsplit(text)
    return (
        parts.scheme.isascii() and bool(parts.hostname) and not re.search(r"[\s<>\"\\^`{|}]", text)
    )


_FORMATS: dict[str, Callable[[str], Any]] = {
    "date": datetime.date.fromisoformat,
    "time": lambda text: datetime.time.fromisoformat(text).tzinfo is not None,
    "date-time": lambda text: datetime.datetime.fromisoformat(text).tzinfo is not None,
    "duration": _DURATION.fullmatch,
    "email": _email,
    "hostname": _hostname,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "uuid": uuid.UUID,
    "uri": _uri,
}


def _format_checker() -> jsonschema.FormatChecker:
    checker = jsonschema.FormatChecker(formats=())
    for name, check in _FORMATS.items():

        def checked(text: object, check: Callable[[str], Any] = check) -> bool:
            return not isinstance(text, str) or bool(check(text))

        checker.checks(name, raises=ValueError)(checked)
    return checker


def _validator(schema: Any) -> Any:
    base = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    return jsonschema.validators.extend(base, {"pattern": _pattern})


def is_valid_schema(schema: Any) -> bool:
    """Whether `schema` is one by its own metaschema."""
    try:
        _validator(schema).check_schema(schema, format_checker=jsonschema.FormatChecker(()))
    except jsonschema.SchemaError:
        return False
    return True


class InvalidTextError(Exception):
    """A text that is not what its schema asks for."""


def _listed_names(schema: Any) -> Iterator[str]:
    """Every name in any `properties` of `schema`."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("properties"), Mapping):
            yield from schema["properties"]
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from _listed_names(part)


def check_text(text: str, schema: Any) -> None:
    """Raise InvalidTextError unless `text` is JSON and valid by `schema`.

    Names that the schema lists must not be repeated; of others the last counts, as parsers do.
    """

    listed = set(_listed_names(schema))

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs if name in listed]
        if len(set(names)) != len(names):
            raise ValueError("a listed name is given twice")
        return dict(pairs)

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
        _validator(schema)(schema, format_checker=_format_checker()).validate(value)
    except (ValueError, jsonschema.ValidationError) as error:
        raise InvalidTextError(f"{text!r}: {str(error)[:300]}") from error
