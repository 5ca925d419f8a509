"""The page's files: which are served, how, and what they may not do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import FastAPI, Request, Response
from starlette.testclient import TestClient

from edge_infer.server.errors import ApiError, error_response
from edge_infer.server.routes_page import router
from edge_infer.server.settings import Settings

FILES = {
    file.name: file.read_text(encoding="utf-8")
    for file in (resources.files("edge_infer.server") / "page").iterdir()
}


def client_for(settings: Settings) -> TestClient:
    async def answer_error(request: Request, error: Exception) -> Response:
        return error_response(error, request.url.path)

    app = FastAPI()
    app.state.server = SimpleNamespace(settings=settings)
    app.include_router(router)
    app.add_exception_handler(ApiError, answer_error)
    return TestClient(app)


@pytest.fixture
def client() -> Iterator[TestClient]:
    with client_for(Settings()) as client:
        yield client


def test_the_page_is_at_the_root(client: TestClient) -> None:
    response = client.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.text == FILES["index.html"]


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_file_is_served_under_its_own_type(client: TestClient, name: str) -> None:
    response = client.get(f"/page/{name}")
    assert response.status_code == 200
    assert response.text == FILES[name]
    kinds = {
        "js": "text/javascript",
        "css": "text/css",
        "svg": "image/svg+xml",
        "html": "text/html",
    }
    assert response.headers["content-type"].split(";")[0] == kinds[name.rpartition(".")[2]]
    policy = response.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/page/",
        "/page/__init__.py",
        "/page/..%2fstatus.py",
        "/page/%2e%2e/status.py",
        "/page/..%2f..%2fserver%2fpage%2fchat.js",
        "/page/chat.js%00",
        "/page/CHAT.JS",
    ],
)
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_a_known_version_is_not_sent_again(client: TestClient) -> None:
    tag = client.get("/page/chat.js").headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        response = client.get("/page/chat.js", headers={"if-none-match": known})
        assert (response.status_code, response.content) == (304, b"")
        assert response.headers["etag"] == tag
    other = client.get("/page/style.css").headers["etag"]
    assert client.get("/page/chat.js", headers={"if-none-match": other}).status_code == 200


def test_no_page_when_told_so() -> None:
    with client_for(Settings(no_page=True)) as client:
        for path in ("/", "/page/chat.js"):
            response = client.get(path)
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "not_found"


def test_every_file_the_page_asks_for_exists() -> None:
    asked = set(re.findall(r'(?:href|src)="page/([^"]+)"', FILES["index.html"]))
    for name, text in FILES.items():
        if name.endswith(".js"):
            asked |= set(re.findall(r'from "\./([^"]+)"', text))
    assert {"style.css", "chat.js", "markdown.js"} <= asked <= FILES.keys()


@pytest.mark.parametrize("name", sorted(FILES))
def test_no_file_uses_what_the_policy_forbids(name: str) -> None:
    text = FILES[name]
    addresses = set(re.findall(r"""["'(]((?:https?:)?//[^"')\s]+)""", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    assert re.search(forbidden, text) is None
    if name == "index.html":
        assert re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text) is None


def test_the_document_describes_the_status_only(client: TestClient) -> None:
    document = cast(FastAPI, client.app).openapi()
    assert list(document["paths"]) == ["/v1/status"]
    answers: dict[str, Any] = document["paths"]["/v1/status"]["get"]["responses"]
    schema = answers["200"]["content"]["application/json"]["schema"]
    assert set(schema["required"]) == {"model", "kv_cache", "memory", "requests", "runtime"}
