"""References: transformers' reading of the same GGUF; the pre-tokenizer SmolLM2's tokenizer.json
has, built with `tokenizers`; and ids recorded from llama.cpp (llama-cpp-python 0.3, vocab_only)."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import CORPUS
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from edge_infer.text import Tokenizer, TokenizerError, load_tokenizer, tokenizer_from_gguf

PIECES = [
    " ", "  ", "    ", "\n", "\n\n", "\t", "\r\n", "a", "Zed", "HTTPServer", "'s", "'LL", "don't",
    "1", "23", "456", "²", "½", "٣", "日本語", "한국", "мир", "é", "e\u0301", "🤗", "👩‍👩‍👧",
    "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_", "_", "==", "{}", "://", "\u00a0",
    "\u3000", "ﬁ", "\x00", "\u200d", "<", "|", "\u02bc", "ǅ", "\u2028", "\x85",
]  # fmt: skip


def mixed_texts(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(PIECES, k=rng.randint(1, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def smollm2(smollm2_folder: Path) -> Tokenizer:
    return load_tokenizer(smollm2_folder)


@pytest.fixture(scope="module")
def transformers_smollm2(smollm2_gguf: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(
        smollm2_gguf.parent, gguf_file=smollm2_gguf.name
    )


def test_smollm2_encodes_and_decodes_as_transformers(
    smollm2: Tokenizer, transformers_smollm2: Any
) -> None:
    # transformers cuts at GPT-2's words only, so it differs where a space precedes a number
    texts = [text for text in mixed_texts(3000) if not re.search(r"\s[\d²½]", text)]
    assert len(texts) > 1000
    for text in CORPUS[:1] + CORPUS[2:] + texts:
        ids = transformers_smollm2.encode(text)
        assert smollm2.encode(text) == ids
        for skip in (True, False):
            decoded = transformers_smollm2.decode(ids, skip_special_tokens=skip)
            assert smollm2.decode(ids, skip_special_tokens=skip) == decoded


def test_smollm2_encodes_as_its_own_tokenizer_json_would(
    smollm2: Tokenizer, smollm2_metadata: dict[str, Any]
) -> None:
    tokens = smollm2_metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in smollm2_metadata["tokenizer.ggml.merges"]]
    reference = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    reference.decoder = decoders.ByteLevel()
    reference.add_special_tokens(tokens[:17])
    for text in CORPUS + mixed_texts(3000, seed=1):
        assert smollm2.encode(text) == reference.encode(text).ids


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world! 123", [19556, 905, 17, 216, 33, 34, 35]),
        ("   123", [333, 33, 34, 35]),
        ("a  12", [81, 256, 33, 34]),
        ("\n\n  7", [39892, 39]),
        ("x²³½ ٣٤", [104, 19133, 39050, 16738, 216, 164, 113, 164, 114]),
        ("<|im_start|>user\nhi<|im_end|>", [1, 4093, 198, 6004, 2]),
    ],
)
def test_smollm2_encodes_as_llama_cpp(smollm2: Tokenizer, text: str, ids: list[int]) -> None:
    assert smollm2.encode(text) == ids


def test_smollm2_special_tokens_and_files(
    smollm2: Tokenizer, smollm2_folder: Path, smollm2_metadata: dict[str, Any], tmp_path: Path
) -> None:
    ids = tokenizer_from_gguf(smollm2_metadata, tmp_path)
    assert (ids.bos, ids.eos, ids.pad, ids.unk) == (1, (2, 0), 2, 0)
    assert (smollm2.bos_token_id, smollm2.eos_token_id, smollm2.pad_token_id) == (1, 2, 2)
    assert smollm2.vocab_size == 49152
    assert smollm2.special_token_ids == set(range(17))
    assert smollm2.encode("hi", add_special_tokens=True) == [6004]
    config = json.loads((smollm2_folder / "tokenizer_config.json").read_text())
    assert config["chat_template"] == smollm2_metadata["tokenizer.chat_template"]


def test_transformers_opens_the_written_folder(smollm2: Tokenizer, smollm2_folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    reopened = transformers.AutoTokenizer.from_pretrained(smollm2_folder)
    messages = [{"role": "user", "content": "What is 12 + 30?"}]
    expected = reopened.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert smollm2.encode_chat(messages) == expected


# --- SentencePiece -------------------------------------------------------------------------------


def sentencepiece(metadata: dict[str, Any], folder: Path, **changes: Any) -> Tokenizer:
    changed = {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    tokenizer_from_gguf(metadata | changed, folder)
    return load_tokenizer(folder)


def test_sentencepiece_encodes_as_transformers(
    sentencepiece_metadata: dict[str, Any], tmp_path: Path
) -> None:
    gguf = pytest.importorskip("gguf")
    transformers = pytest.importorskip("transformers")
    writer = gguf.GGUFWriter(tmp_path / "toy.gguf", "llama")
    writer.add_vocab_size(len(sentencepiece_metadata["tokenizer.ggml.tokens"]))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(sentencepiece_metadata["tokenizer.ggml.tokens"])
    writer.add_token_scores(sentencepiece_metadata["tokenizer.ggml.scores"])
    writer.add_token_types(sentencepiece_metadata["tokenizer.ggml.token_type"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for name, value in (("block_count", 1), ("embedding_length", 64), ("context_length", 64)):
        writer.add_uint32(f"llama.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="toy.gguf")
    ours = sentencepiece(sentencepiece_metadata, tmp_path)
    # transformers puts no second space before a text that begins with one
    texts = [text for text in mixed_texts(500) if not text[0].isspace()]
    for text in CORPUS + texts:
        text = text.replace("<|im_", "<|")
        ids = reference.encode(text)
        assert ours.encode(text) == ids
        assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def spell(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.backend.id_to_token(i) for i in tokenizer.encode(text)]


def test_sentencepiece_leading_spaces_as_in_llama_cpp(
    sentencepiece_metadata: dict[str, Any], tmp_path: Path
) -> None:
    tokenizer = sentencepiece(sentencepiece_metadata, tmp_path)
    assert spell(tokenizer, "the") == ["<s>", "▁the"]
    assert spell(tokenizer, " the")[:2] == ["<s>", "▁"]  # one space more than the text has
    assert spell(tokenizer, "<|user|>the") == ["<s>", "<|user|>", "▁the"]
    assert spell(tokenizer, "<think>the") == ["<s>", "<think>", "▁the"]
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"
    plain = sentencepiece(
        sentencepiece_metadata, tmp_path, add_space_prefix=False, add_bos_token=False
    )
    assert "▁the" not in spell(plain, "the")
    assert plain.decode(plain.encode(" the")) == " the"


def test_sentencepiece_byte_fallback(
    sentencepiece_metadata: dict[str, Any], tmp_path: Path
) -> None:
    tokenizer = sentencepiece(sentencepiece_metadata, tmp_path)
    assert spell(tokenizer, "ß")[2:] == ["<0xC3>", "<0x9F>"]
    assert tokenizer.decode(tokenizer.encode("ß")) == "ß"


def test_merges_follow_the_scores(sentencepiece_metadata: dict[str, Any], tmp_path: Path) -> None:
    def tokens(*pieces: str) -> dict[str, Any]:
        return {
            "tokens": ["<unk>", "a", "b", "c", *pieces],
            "scores": [0.0, -9.0, -9.0, -9.0, *(-1.0 - rank for rank in range(len(pieces)))],
            "token_type": [2, 1, 1, 1] + [1] * len(pieces),
            "eos_token_id": 1,
            "add_bos_token": False,
            "add_space_prefix": False,
        }

    left = sentencepiece(sentencepiece_metadata, tmp_path, **tokens("ab", "bc"))
    assert spell(left, "abc") == ["ab", "c"]
    right = sentencepiece(sentencepiece_metadata, tmp_path, **tokens("bc", "ab"))
    assert spell(right, "abc") == ["a", "bc"]


# --- Pre-tokenizers and refusals -----------------------------------------------------------------


def byte_level_metadata(pre: str | None) -> dict[str, Any]:
    """All bytes, and merges that only apply where a pre-tokenizer leaves the parts together."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["Ġ 1", "1 2", "12 3", "Ġ Ġ", "( a", "a b", "' S"]
    tokens = ["<|end|>", *alphabet, *(merge.replace(" ", "") for merge in merges), "whole"]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] + [1] * (len(tokens) - 1),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }
    return metadata if pre is None else metadata | {"tokenizer.ggml.pre": pre}


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "a  123", ["a", "Ġ", "Ġ1", "2", "3"]),
        ("default", "a  123", ["a", "Ġ", "Ġ", "123"]),
        (None, "a  123", ["a", "Ġ", "Ġ", "123"]),
        ("smollm", "a  123", ["a", "ĠĠ", "1", "2", "3"]),
        ("qwen2", "a  123", ["a", "Ġ", "Ġ", "1", "2", "3"]),
        ("llama-bpe", "a  123", ["<|end|>", "a", "Ġ", "Ġ", "123"]),
        ("tekken", "a  123", ["<|end|>", "a", "Ġ", "Ġ", "1", "2", "3"]),
        ("gpt-2", "(ab'S", ["(", "ab", "'", "S"]),
        ("qwen2", "(ab'S", ["(a", "b", "'S"]),
        ("gpt-2", "whole", ["w", "h", "o", "l", "e"]),
        ("llama3", "whole", ["<|end|>", "whole"]),
    ],
)
def test_pre_tokenizers(pre: str | None, text: str, expected: list[str], tmp_path: Path) -> None:
    tokenizer_from_gguf(byte_level_metadata(pre), tmp_path)
    assert spell(load_tokenizer(tmp_path), text) == expected


def test_bos_and_eos_around_a_text(tmp_path: Path) -> None:
    flags = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    tokenizer_from_gguf(byte_level_metadata("gpt-2") | flags, tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert spell(tokenizer, "ab") == ["<|end|>", "ab", "<|end|>"]
    assert len(tokenizer.encode("ab", add_special_tokens=False)) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "rwkv"}, "model is 'rwkv'; supported: gpt2, llama"),
        ({"pre": "chameleon"}, "pre is 'chameleon'; supported: .*smollm"),
        ({"tokens": None}, "no tokenizer.ggml.tokens"),
        ({"merges": None}, "no tokenizer.ggml.merges"),
        ({"merges": ["a"]}, r"merges\[0\] is 'a'"),
        ({"merges": ["a zz"]}, "'zz'"),
        ({"tokens": ["a", "a"]}, "more than once"),
        ({"tokens": ["a", 5]}, r"tokens\[1\] is 5"),
        ({"tokens": "abc"}, "tokens is not a list"),
        ({"token_type": [1]}, "token_type has 1 entries"),
        ({"eos_token_id": 10**6}, "eos_token_id is 1000000; the vocabulary has"),
        ({"eos_token_id": "2"}, "an integer is expected"),
        ({"add_bos_token": 1}, "a boolean is expected"),
        ({"add_bos_token": True, "bos_token_id": None}, "bos is to be added"),
    ],
)
def test_metadata_that_cannot_be_used(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    metadata = byte_level_metadata("gpt-2")
    for name, value in changes.items():
        metadata[f"tokenizer.ggml.{name}"] = value
        if value is None:
            del metadata[f"tokenizer.ggml.{name}"]
    with pytest.raises(TokenizerError, match=message):
        tokenizer_from_gguf(metadata, tmp_path)
    assert list(tmp_path.iterdir()) == []
