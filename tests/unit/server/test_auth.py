"""API keys."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from edge_infer.server.auth import ApiKeys, presented_key


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, None),
        ({"authorization": "Bearer one"}, "one"),
        ({"authorization": "bearer  one "}, "one"),
        ({"authorization": "Basic one"}, None),
        ({"authorization": "Bearer"}, None),
        ({"x-api-key": "two"}, "two"),
        ({"authorization": "Bearer one", "x-api-key": "two"}, "one"),
    ],
)
def test_the_key_of_a_request(headers: dict[str, str], key: str | None) -> None:
    assert presented_key(Headers(headers)) == key


def test_only_whole_keys_open() -> None:
    keys = ApiKeys(["first", "sécond"])
    assert "first" in keys
    assert "sécond" in keys
    for wrong in ("", "firs", "first ", "FIRST", "third"):
        assert wrong not in keys
