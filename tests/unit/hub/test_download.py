import json
import logging
import os
from pathlib import Path

import pytest
from fake_hub import COMMIT, FakeHub

from edge_infer.hub.errors import ModelSourceError
from edge_infer.hub.source import ResolvedModel, resolve_model

WEIGHTS = "model.safetensors"


def fetch(cache: Path, model: str = "org/tiny", **options: object) -> ResolvedModel:
    return resolve_model(model, cache_dir=cache, progress=False, **options)  # type: ignore[arg-type]


def blob(cache: Path, hub: FakeHub, name: str) -> Path:
    return cache / "hub/models--org--tiny/blobs" / hub.etag(name)


def refused(cache: Path, **options: object) -> str:
    with pytest.raises(ModelSourceError) as caught:
        fetch(cache, **options)
    return str(caught.value)


def test_what_the_engine_reads_is_fetched_and_nothing_else(hub: FakeHub, tmp_path: Path) -> None:
    found = fetch(tmp_path)
    assert (found.kind, found.origin) == ("hub", f"org/tiny@{COMMIT}")
    names = {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert {file.name for file in found.path.iterdir()} == names | {WEIGHTS}
    for name in names | {WEIGHTS}:
        assert (found.path / name).read_bytes() == hub.files[name]
    assert not hub.sent("GET", "README.md")


def test_the_second_time_nothing_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    first = fetch(tmp_path)
    hub.requests.clear()
    assert fetch(tmp_path) == first
    assert not hub.sent("GET", "/resolve/")
    assert not hub.sent("GET", "/cdn/")


def test_the_token_stays_with_the_hub(hub: FakeHub, tmp_path: Path) -> None:
    fetch(tmp_path)
    for headers in hub.sent("GET", "/resolve/") + hub.sent("GET", "/api/"):
        assert headers["authorization"] == "Bearer hf_secret"
    assert len(hub.sent("GET", "/cdn/")) == 1
    assert "authorization" not in hub.sent("GET", "/cdn/")[0]


def test_dropped_connections_are_resumed(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_infer.hub.transfer.PAUSE_SECONDS", 0.0)
    hub.cut[WEIGHTS] = [300_000, 0, 0, 0, 0, 1, 0, 0]
    found = fetch(tmp_path)
    assert (found.path / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    ranges = [headers.get("range") for headers in hub.sent("GET", "/cdn/")]
    assert ranges == [None, *["bytes=300000-"] * 5, *["bytes=300001-"] * 3]


def test_a_later_run_resumes_what_an_earlier_one_left(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_infer.hub.transfer.PAUSE_SECONDS", 0.0)
    hub.cut[WEIGHTS] = [500_000, *[0] * 20]
    message = refused(tmp_path)
    assert WEIGHTS in message
    assert f"500000 of {len(hub.files[WEIGHTS])} bytes" in message
    partial = blob(tmp_path, hub, WEIGHTS).with_suffix(".incomplete")
    assert partial.stat().st_size == 500_000
    hub.cut.clear()
    hub.requests.clear()
    found = fetch(tmp_path)
    assert (found.path / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    assert [h.get("range") for h in hub.sent("GET", "/cdn/")] == ["bytes=500000-"]
    assert not partial.exists()


def test_a_server_without_ranges_starts_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.ranges = False
    partial = blob(tmp_path, hub, WEIGHTS).with_suffix(".incomplete")
    partial.parent.mkdir(parents=True)
    partial.write_bytes(hub.files[WEIGHTS][:1000])
    assert (fetch(tmp_path).path / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


def test_a_busy_hub_is_asked_again(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_infer.hub.transfer.PAUSE_SECONDS", 0.0)
    hub.statuses["/cdn/"] = (503, "")
    assert "cannot be fetched" in refused(tmp_path)
    assert len(hub.sent("GET", "/cdn/")) == 5
    hub.statuses.clear()
    assert fetch(tmp_path).kind == "hub"


def test_a_partial_file_of_something_else_is_found_out(hub: FakeHub, tmp_path: Path) -> None:
    partial = blob(tmp_path, hub, WEIGHTS).with_suffix(".incomplete")
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"\0" * 400_000)
    message = refused(tmp_path)
    assert f"{WEIGHTS} of org/tiny is damaged" in message
    assert "hash" in message
    assert not partial.exists()
    assert fetch(tmp_path).kind == "hub"


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_a_flipped_byte_is_found_out(hub: FakeHub, tmp_path: Path, name: str) -> None:
    body = bytearray(hub.files[name])
    body[len(body) // 2] ^= 1
    hub.served[name] = bytes(body)
    message = refused(tmp_path)
    assert f"{name} of org/tiny is damaged" in message
    assert "run the same command again" in message
    assert not blob(tmp_path, hub, name).exists()
    hub.served.clear()
    found = fetch(tmp_path)
    assert (found.path / name).read_bytes() == hub.files[name]


def test_an_html_page_instead_of_a_shard(hub: FakeHub, tmp_path: Path) -> None:
    hub.served[WEIGHTS] = b"<!DOCTYPE html><html><body>Please log in</body></html>"
    message = refused(tmp_path)
    assert WEIGHTS in message
    assert "HTML" in message
    hub.served.clear()
    assert fetch(tmp_path).kind == "hub"


def test_an_html_page_of_the_right_size(hub: FakeHub, tmp_path: Path) -> None:
    size = len(hub.files[WEIGHTS])
    hub.served[WEIGHTS] = b"<html>".ljust(size)
    assert "HTML" in refused(tmp_path)


def test_a_file_damaged_in_the_cache_is_found_out(hub: FakeHub, tmp_path: Path) -> None:
    found = fetch(tmp_path)
    path = blob(tmp_path, hub, WEIGHTS)
    with path.open("r+b") as file:
        file.write(b"\0" * 16)
    os.utime(path, ns=(1, 1))
    assert "is damaged" in refused(tmp_path, offline=True)
    assert fetch(tmp_path).path == found.path
    assert path.read_bytes() == hub.files[WEIGHTS]


@pytest.mark.usefixtures("hub")
def test_hashes_are_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(tmp_path)

    def no_hash(*_arguments: object) -> str:
        raise AssertionError("hashed again")

    monkeypatch.setattr("edge_infer.hub.verify.file_digest", no_hash)
    fetch(tmp_path)
    fetch(tmp_path, offline=True)


def test_without_a_network_an_earlier_download_is_used(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port: refused
    message = refused(tmp_path)
    assert "http://127.0.0.1:9 cannot be reached" in message
    assert "org/tiny is not in" in message
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    found = fetch(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with caplog.at_level(logging.WARNING):
        assert fetch(tmp_path) == found
    assert "earlier download" in caplog.text


def test_offline_asks_nobody(hub: FakeHub, tmp_path: Path) -> None:
    assert "offline" in refused(tmp_path, offline=True)
    found = fetch(tmp_path)
    hub.requests.clear()
    assert fetch(tmp_path, offline=True) == found
    assert hub.requests == []


def test_offline_needs_every_shard(hub: FakeHub, tmp_path: Path) -> None:
    shards = {f"model-0000{i}-of-00002.safetensors": bytes([i]) * 1000 for i in (1, 2)}
    index = {"weight_map": {f"w{i}": name for i, name in enumerate(shards)}}
    del hub.files[WEIGHTS]
    hub.files |= shards | {"model.safetensors.index.json": json.dumps(index).encode()}
    found = fetch(tmp_path)
    assert set(shards) <= {file.name for file in found.path.iterdir()}
    second = list(shards)[1]
    (found.path / second).unlink()
    assert second in refused(tmp_path, offline=True)


def test_weights_in_two_forms_are_fetched_once(hub: FakeHub, tmp_path: Path) -> None:
    hub.files["consolidated.safetensors"] = b"the same again"
    assert not (fetch(tmp_path).path / "consolidated.safetensors").exists()


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (404, "RepoNotFound", "does not exist"),
        (401, "", "private (401)"),
        (401, "GatedRepo", "gated (401)"),
        (403, "GatedRepo", "accept its terms"),
        (403, "", "HF_TOKEN"),
        (404, "RevisionNotFound", "no revision 'v9'"),
    ],
)
def test_refusals_of_the_hub(
    hub: FakeHub, tmp_path: Path, status: int, code: str, words: str
) -> None:
    hub.statuses["/api/"] = (status, code)
    message = refused(tmp_path, revision="v9")
    assert words in message
    assert "org/tiny" in message


def test_a_gated_file(hub: FakeHub, tmp_path: Path) -> None:
    # A listing may be public where the files are not.
    hub.statuses["/org/tiny/resolve/"] = (403, "GatedRepo")
    assert "gated" in refused(tmp_path)


def test_a_login_page_instead_of_the_hub(hub: FakeHub, tmp_path: Path) -> None:
    hub.api_body = b"<html>Welcome to the hotel</html>"
    assert "did not answer like a hub" in refused(tmp_path)


def test_nothing_to_run(hub: FakeHub, tmp_path: Path) -> None:
    del hub.files[WEIGHTS]
    assert "pickle" in refused(tmp_path)
    hub.files["tiny.Q4_0.gguf"] = b"GGUF"
    assert "tiny.Q4_0.gguf" in refused(tmp_path)
    assert not hub.sent("GET", "/resolve/")


def test_no_space(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "edge_infer.hub.cache.shutil.disk_usage",
        lambda _path: type("Usage", (), {"free": 1000})(),
    )
    assert "0.00 GB free" in refused(tmp_path)
    assert not hub.sent("GET", "/cdn/")


def test_a_name_that_is_no_hub_id(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="no hub id"):
        fetch(tmp_path, "org/--bad--")
    assert hub.requests == []
