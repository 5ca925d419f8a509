"""Structured outputs over HTTP: enforced at any temperature, or refused with their place."""

import re
from typing import Any

import pytest
from harness.schema_corpus import SCHEMAS, check_text
from tests.e2e.server.conftest import RunningServer
from tests.e2e.server.plain_http import Answer, request

BY_NAME = {entry["name"]: entry for entry in SCHEMAS}


def ask(server: RunningServer, **options: Any) -> Answer:
    body = {
        "messages": [{"role": "user", "content": "An example, please."}],
        "temperature": 1.5,
        "seed": 0,
        "max_tokens": 200,
        **options,
    }
    return request(server.base_url, "/v1/chat/completions", body)


def strict(schema: Any) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": "example", "schema": schema, "strict": True},
    }


@pytest.mark.parametrize(
    "name", ["tool call", "object: flat", "format date-time", "enum [1, 2, 3]"]
)
def test_answers_are_valid(server: RunningServer, name: str) -> None:
    schema = BY_NAME[name]["schema"]
    for seed in range(3):
        choice = ask(server, response_format=strict(schema), seed=seed).json["choices"][0]
        assert choice["finish_reason"] == "stop"
        check_text(choice["message"]["content"], schema)


@pytest.mark.parametrize(
    "name",
    ["keyword: misspelt", "reference: without an end", "combined: oneOf overlapping numbers"],
)
def test_refusals_name_their_place(server: RunningServer, name: str) -> None:
    answer = ask(server, response_format=strict(BY_NAME[name]["schema"]))
    assert (answer.status, answer.error["code"]) == (400, "invalid_grammar")
    assert f"json_schema at {BY_NAME[name]['refused']}: " in answer.error["message"]


def test_a_grammar_that_turns_out_too_costly_is_refused(server: RunningServer) -> None:
    """While its text is generated, as nobody can tell before; the server goes on."""
    answer = ask(server, structured_outputs={"regex": "[a-z]{1,500}" * 100})
    assert (answer.status, answer.error["code"]) == (400, "invalid_grammar")
    assert "cannot be followed further" in answer.error["message"]
    answer = ask(server, structured_outputs={"regex": "[a-z]{3}"})
    assert re.fullmatch("[a-z]{3}", answer.json["choices"][0]["message"]["content"])


def test_a_grammar_that_overwhelms_the_compiler_is_refused(server: RunningServer) -> None:
    patterns = [{"pattern": f".*{chr(97 + at)}.{{{20 + at}}}"} for at in range(26)]
    answer = ask(server, response_format=strict({"type": "string", "allOf": patterns}))
    assert (answer.status, answer.error["code"]) == (400, "invalid_grammar")
    assert "too costly" in answer.error["message"]
