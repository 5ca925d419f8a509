from collections.abc import Iterator

import huggingface_hub
import pytest
from fake_hub import FakeHub

CONTENT = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": bytes(range(256)) * 4096,
    "README.md": b"# Tiny",
    "pytorch_model.bin": b"\x80\x02 pickled",
    "onnx/config.json": b"{}",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A running stand-in that HF_ENDPOINT points to."""
    state = FakeHub(dict(CONTENT))
    server = state.start()
    monkeypatch.setenv("HF_ENDPOINT", state.endpoint)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield state
    server.shutdown()
    server.server_close()
    huggingface_hub.close_session()
