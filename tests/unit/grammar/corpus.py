"""A corpus of JSON Schemas, a sampler of random texts under a grammar, and their validation.

`schemas.json` lists {"name", "schema"}: what people write, and what they should not.
"""

import datetime
import ipaddress
import json
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import regex
from numpy.typing import NDArray

from edge_infer.engine.sampler import Sampler
from edge_infer.engine.sampling_params import SamplingParams
from edge_infer.grammar import CompiledGrammar
from edge_infer.text import Tokenizer

SCHEMAS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "schemas.json").read_text(encoding="utf-8")
)
_LABEL = re.compile("[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_DURATION = re.compile(
    r"P(?!$)(\d+Y)?(\d+M)?(\d+W)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?", re.ASCII
)


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Any:
    """As in ECMA 262: \\d and \\w are ASCII, \\s is not, \\p{...} is known."""
    flags = regex.UNICODE if r"\s" in pattern else regex.ASCII
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


def check_text(text: str, schema: Any) -> None:
    """Raise what is wrong with `text`: not JSON, a name twice, or not valid by `schema`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) != len(names):
            raise ValueError(f"names are given twice in {text!r}")
        return dict(pairs)

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    value = json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
    _validator(schema)(schema, format_checker=_format_checker()).validate(value)


class RandomTexts:
    """Random texts under a grammar, drawn by the engine's sampler at temperature 1.5.

    Tokens that close strings, objects and texts are likelier, so that texts come to an end.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self._tokenizer = tokenizer
        self._bank: NDArray[np.float32] = random.standard_normal((16, vocab_size), np.float32)
        for token_id in range(vocab_size):
            text = tokenizer.token_bytes(token_id)
            if text in (b'"', b"}", b"]", b'"}', b'"]', b"0") or (
                token_id in tokenizer.eos_token_ids
            ):
                self._bank[:, token_id] += 14.0

    def sample(self, grammar: CompiledGrammar, seed: int, max_tokens: int = 150) -> str | None:
        """A text, or None when it did not end within `max_tokens`."""
        matcher = grammar.matcher()
        params = SamplingParams(temperature=1.5, seed=seed)
        ends = self._tokenizer.eos_token_ids
        sampler = Sampler(params, self._bank.shape[1], ends, matcher=matcher)
        token_ids: list[int] = []
        for step in range(max_tokens):
            token_id = sampler.sample(self._bank[(seed + step) % len(self._bank)]).token_id
            if token_id in ends:
                return b"".join(map(self._tokenizer.token_bytes, token_ids)).decode()
            token_ids.append(token_id)
        return None
