"""Bodies as strict JSON."""

from __future__ import annotations

import pytest

from edge_infer.server.errors import ApiError
from edge_infer.server.limits import MAX_CONTAINERS, MAX_DEPTH, parse_json


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b'{"a": \xff}', "byte 6 is not UTF-8"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": "\\uD800"}', "half of a surrogate pair"),
        (b'{"\\udc00": 1}', "half of a surrogate pair"),
        (b'{"a":' * 100_000, "nested"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
    ],
)
def test_what_is_no_json_is_refused(raw: bytes, says: str) -> None:
    with pytest.raises(ApiError, match="not valid JSON") as caught:
        parse_json(raw)
    assert says in caught.value.message
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_depth_is_bounded() -> None:
    def nested(depth: int) -> bytes:
        return b'{"a": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"

    parse_json(nested(MAX_DEPTH))
    with pytest.raises(ApiError, match=f"more than {MAX_DEPTH}"):
        parse_json(nested(MAX_DEPTH + 1))


def test_structure_is_bounded() -> None:
    def of_objects(count: int) -> bytes:
        return b'{"a": [' + b", ".join([b"{}"] * (count - 2)) + b"]}"

    parse_json(of_objects(MAX_CONTAINERS))
    with pytest.raises(ApiError, match=f"more than {MAX_CONTAINERS}") as caught:
        parse_json(of_objects(MAX_CONTAINERS + 1))
    assert (caught.value.status, caught.value.code) == (413, "request_too_large")


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert parse_json(b'{"a": "\\ud83c\\udf89"}') == {"a": "\N{PARTY POPPER}"}


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    ("raw", "kind"), [(b"[]", "array"), (b"true", "boolean"), (b"1", "number")]
)
def test_the_body_is_an_object(raw: bytes, kind: str) -> None:
    with pytest.raises(ApiError, match=kind) as caught:
        parse_json(raw)
    assert caught.value.code == "invalid_type"
