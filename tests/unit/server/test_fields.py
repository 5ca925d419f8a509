"""Field tables: every kind refuses by name, and says in its schema what it refuses."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_infer.server.chat_request import CHAT_FIELDS
from edge_infer.server.completion_request import COMPLETION_FIELDS
from edge_infer.server.fields import (
    Array,
    Boolean,
    Either,
    Field,
    Integer,
    Map,
    Number,
    Only,
    String,
    Table,
)
from edge_infer.server.parameter_error import ParameterError

TABLE = Table(
    {
        "count": Field(Integer(1, 5), required=True),
        "share": Field(Number(above=0.0, high=1.0)),
        "name": Field(String(choices=("a", "b"))),
        "label": Field(String(min_length=2, max_length=3)),
        "flag": Field(Boolean()),
        "list": Field(Array(Integer(0), min_items=1, max_items=2)),
        "map": Field(Map(Number(low=0.0, high=1.0), max_items=1)),
        "both": Field(Either(((str, String()), (list, Array(String()))), "a string or a list")),
        "tier": Field(Only(("auto",), "there is one")),
        "inner": Field(Table({"x": Field(Integer(0), required=True)})),
    },
    unsupported={"audio": "there is none"},
)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 7)
    | st.floats(-1, 2)
    | st.sampled_from(["a", "b", "abc", "auto", "", "x" * 9]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2)
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*TABLE.fields, "audio", "other"]), json_values))
def test_the_schema_says_what_the_table_does(body: dict[str, Any]) -> None:
    valid = jsonschema.Draft202012Validator(TABLE.schema()).is_valid(body)
    if body.get("audio", 1) is None:
        return  # null is absent everywhere, which the schema says of known fields only
    try:
        TABLE.read(body)
    except ParameterError as error:
        assert not valid
        assert error.param  # noqa: PT017 - a refusal, which is one of two right outcomes
    else:
        assert valid


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "count", "missing_required_parameter"),
        ({"count": None}, "count", "missing_required_parameter"),
        ({"count": True}, "count", "invalid_type"),
        ({"count": 6}, "count", "invalid_value"),
        ({"count": 1, "list": [0, -1]}, "list[1]", "invalid_value"),
        ({"count": 1, "map": {"k": 2}}, "map.k", "invalid_value"),
        ({"count": 1, "inner": {}}, "inner.x", "missing_required_parameter"),
        ({"count": 1, "inner": {"x": 0, "y": 0}}, "inner.y", "unknown_parameter"),
        ({"count": 1, "tier": "flex"}, "tier", "unsupported_parameter"),
        ({"count": 1, "audio": {}}, "audio", "unsupported_parameter"),
        ({"count": 1, "coutn": 1}, "coutn", "unknown_parameter"),
    ],
)
def test_a_refusal_names_the_parameter(body: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ParameterError) as caught:
        TABLE.read(body)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_null_is_absent_and_whole_floats_are_integers() -> None:
    assert TABLE.read({"count": 2.0, "flag": None, "audio": None}) == {"count": 2}


def test_ignored_parameters_are_named() -> None:
    ignored: list[str] = []
    assert TABLE.read({"count": 1, "odd": 1}, ignored=ignored) == {"count": 1}
    assert ignored == ["odd"]
    with pytest.raises(ParameterError, match="audio is not supported"):
        TABLE.read({"count": 1, "audio": 1}, ignored=ignored)


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(ParameterError) as caught:
        TABLE.read({"count": "x" * 10_000})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("table", [CHAT_FIELDS, COMPLETION_FIELDS])
def test_the_requests_schemas_are_schemas(table: Table) -> None:
    jsonschema.Draft202012Validator.check_schema(table.schema())
    assert not set(table.fields) & set(table.unsupported)
