"""The OpenAPI document against the server: requests made of it, answers held to it."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode, checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    missing_required_header,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from tests.e2e.server.conftest import RunningServer
from tests.e2e.server.plain_http import request

CHECKS = [
    checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    missing_required_header,
    unsupported_method,
]


MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


def test_requests_made_of_the_document(server: RunningServer) -> None:
    # Not schemathesis' own pytest integration, which pytest 9.2 broke.
    schema = schemathesis.openapi.from_url(f"{server.base_url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 10
    for operation in operations:
        for mode in MODES:
            check_operation(operation, mode)


def check_operation(operation: Any, mode: GenerationMode) -> None:
    if mode is GenerationMode.NEGATIVE and operation.method == "get":
        return  # there is nothing to get wrong

    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        shorten(case.body, operation.path)
        case.call_and_validate(checks=CHECKS, timeout=60)

    check()


# Routes that answer to the end of the context when nothing bounds them.
UNBOUNDED = {
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/responses": "max_output_tokens",
}


def shorten(body: Any, path: str) -> None:
    """Keep answers short, so that a minute is enough; what is wrong in a body stays so."""
    if not isinstance(body, dict):
        return
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if isinstance(body.get(name), int) and body[name] > 4:
            body[name] = 4
    if isinstance(body.get("n"), int) and 4 < body["n"] <= 128:
        body["n"] = 2
    if path in UNBOUNDED and body.get("max_tokens") is None and body.get(UNBOUNDED[path]) is None:
        body[UNBOUNDED[path]] = 4


def test_every_route_is_documented(server: RunningServer) -> None:
    document = request(server.base_url, "/openapi.json").json
    paths = document["paths"]
    for path in (
        *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize"),
        *("/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
        *("/detokenize", "/v1/models", "/v1/models/{model}", "/health", "/ready", "/metrics"),
    ):
        for operation in paths[path].values():
            content = operation["responses"]["200"]["content"]
            assert all(kind["schema"] for kind in content.values()), path
            if "requestBody" in operation:
                body = operation["requestBody"]["content"]["application/json"]["schema"]
                assert body["additionalProperties"] is False
                assert operation["responses"]["400"]


def test_the_document_lists_every_sampling_parameter(server: RunningServer) -> None:
    from edge_infer.engine.sampling_params import SamplingParams

    paths = request(server.base_url, "/openapi.json").json["paths"]
    for path in ("/v1/chat/completions", "/v1/completions"):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        missing = set(SamplingParams.__dataclass_fields__) - set(body["properties"])
        assert not missing, path
