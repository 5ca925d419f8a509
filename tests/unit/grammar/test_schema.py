"""Every keyword of JSON Schema is supported, an annotation, or refused at its JSON pointer."""

import json
from typing import Any

import pytest

from edge_infer.grammar.errors import GrammarError
from edge_infer.grammar.formats import FORMATS
from edge_infer.grammar.schema import (
    ANNOTATIONS,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    SUPPORTED,
    checked_schema,
)

# of drafts 3 to 2020-12 and OpenAPI
REFUSED = {
    "$anchor",
    "$dynamicAnchor",
    "$dynamicRef",
    "$recursiveAnchor",
    "$recursiveRef",
    "$vocabulary",
    "contains",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "disallow",
    "divisibleBy",
    "else",
    "extends",
    "externalDocs",
    "if",
    "id",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "x-guidance",
    "xml",
}


def refusal(schema: Any) -> str:
    with pytest.raises(GrammarError) as error:
        checked_schema(schema)
    return str(error.value)


@pytest.mark.parametrize("keyword", sorted(REFUSED))
def test_other_keywords_are_refused_by_name_and_place(keyword: str) -> None:
    place = {"properties": {"a/b": {"items": {keyword: {}}}}}
    assert refusal(place) == (
        f"json_schema at #/properties/a~1b/items/{keyword}: the keyword '{keyword}' "
        "is not supported"
    )


def test_no_keyword_is_two_things() -> None:
    assert not SUPPORTED & ANNOTATIONS
    assert not (SUPPORTED | ANNOTATIONS) & REFUSED


@pytest.mark.parametrize("keyword", sorted(ANNOTATIONS))
def test_annotations_are_dropped(keyword: str) -> None:
    assert checked_schema({"type": "null", keyword: "anything"}) == {"type": "null"}


def test_extensions_and_the_root_id_are_dropped() -> None:
    assert checked_schema({"$id": "http://a/b", "x-order": 1, "type": "null"}) == {"type": "null"}


@pytest.mark.parametrize("value", ["type", "title", "not"])
def test_properties_may_be_named_like_keywords(value: str) -> None:
    schema = {"type": "object", "properties": {value: {"type": "null"}}}
    assert checked_schema(schema) == schema


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("uniqueItems", False),
        ("nullable", False),
        ("unevaluatedProperties", True),
        ("unevaluatedItems", True),
    ],
)
def test_a_keyword_that_allows_everything_is_dropped(keyword: str, value: bool) -> None:
    assert checked_schema({keyword: value}) == {}
    assert f"#/{keyword}" in refusal({keyword: not value})


def test_constants_and_enums_are_values_and_not_schemas() -> None:
    schema = {"enum": [{"not": 1}, {"if": 2}]}
    assert checked_schema(schema) == schema
    assert checked_schema({"const": {"title": "kept"}}) == {"const": {"title": "kept"}}


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_format_is_a_pattern_beside_another(name: str) -> None:
    assert checked_schema({"format": name}) == {"pattern": FORMATS[name]}
    assert checked_schema({"format": name, "pattern": "a"}) == {
        "pattern": "a",
        "allOf": [{"pattern": FORMATS[name]}],
    }


def test_an_unknown_format_is_refused_with_those_there_are() -> None:
    message = refusal({"items": {"format": "iri"}})
    assert message.startswith("json_schema at #/items/format: the format 'iri' is not supported")
    assert "date-time" in message


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("#/$defs/none", "#/$ref: is '#/$defs/none', which is not in the schema"),
        ("http://example.com/a", "only references into this schema"),
        ("#name", "only references into this schema"),
        (3, "#/$ref: is 3; it must be a string"),
    ],
)
def test_a_reference_leads_into_the_schema(reference: Any, words: str) -> None:
    assert words in refusal({"$ref": reference, "$defs": {"some": True}})


def test_references_may_be_escaped() -> None:
    schema = {"$defs": {"a/b~ c": {"type": "null"}}, "$ref": "#/$defs/a~1b~0%20c"}
    assert checked_schema(schema) == schema


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"properties": []}, "#/properties"),
        ({"properties": {"a": 3}}, "#/properties/a"),
        ({"anyOf": {}}, "#/anyOf"),
        ({"anyOf": [3]}, "#/anyOf/0"),
        ({"items": "a"}, "#/items"),
        ({"minimum": "3"}, "#/minimum"),
        ({"exclusiveMaximum": True}, "#/exclusiveMaximum"),
    ],
)
def test_values_of_the_wrong_type_are_refused(schema: Any, where: str) -> None:
    assert refusal(schema).startswith(f"json_schema at {where}: is ")


def test_true_is_anything_and_false_is_nothing() -> None:
    assert checked_schema(True) == {}
    assert "no value matches" in refusal(False)


def test_the_size_is_limited() -> None:
    enum = {"enum": ["é" * (MAX_SCHEMA_BYTES // 2 - 10)]}
    size = len(json.dumps(enum, ensure_ascii=False).encode())
    assert checked_schema(enum) == enum
    enum["enum"][0] += "a" * (MAX_SCHEMA_BYTES - size + 1)
    assert refusal(enum) == (
        f"json_schema has {MAX_SCHEMA_BYTES + 1} bytes; it must have at most {MAX_SCHEMA_BYTES}"
    )


def test_the_depth_is_limited() -> None:
    def nested(levels: int) -> dict[str, Any]:
        schema: dict[str, Any] = {}
        for _ in range(levels):
            schema = {"items": schema}
        return schema

    assert checked_schema(nested(MAX_SCHEMA_DEPTH)) == nested(MAX_SCHEMA_DEPTH)
    assert f"is deeper than {MAX_SCHEMA_DEPTH} levels" in refusal(nested(MAX_SCHEMA_DEPTH + 1))


LIST = {"type": "object", "properties": {"next": {"$ref": "#"}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {**LIST, "required": ["next"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1},
        {"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}]},
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        },
    ],
)
def test_recursion_without_an_end_is_refused(schema: dict[str, Any]) -> None:
    assert "without end" in refusal(schema)


@pytest.mark.parametrize(
    "schema",
    [
        LIST,
        {**LIST, "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "array", "prefixItems": [True, {"$ref": "#"}], "minItems": 1},
        {"type": "object", "properties": {"$ref": {"type": "null"}}, "required": ["$ref"]},
    ],
)
def test_recursion_with_an_end_is_not(schema: dict[str, Any]) -> None:
    assert checked_schema(schema) == schema


def test_long_chains_of_references_are_refused() -> None:
    links = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(5000)}
    chain = {"$defs": {**links, "d5000": {"type": "null"}}, "$ref": "#/$defs/d0"}
    assert "deeper than 100" in refusal(chain)


def test_one_of_becomes_any_of_only_for_constants_that_differ() -> None:
    apart = [{"const": 1}, {"enum": ["a", "b"]}, {"const": {"a": [1, None]}}]
    assert checked_schema({"oneOf": apart}) == {"anyOf": apart}
    for overlapping in (
        [{"const": 1}, {"const": 1.0}],
        [{"enum": ["a", "b"]}, {"const": "b"}],
        [{"const": {"a": 1, "b": 2}}, {"const": {"b": 2, "a": 1}}],
    ):
        assert checked_schema({"oneOf": overlapping}) == {"oneOf": overlapping}


def test_the_least_number_of_names_counts_only_names_that_differ() -> None:
    enough = {"type": "object", "required": ["a", "b"], "minProperties": 3}
    assert checked_schema(enough) == enough
    message = refusal({"items": {**enough, "minProperties": 4}})
    assert message.startswith("json_schema at #/items/minProperties: is 4; it must be at most one")
