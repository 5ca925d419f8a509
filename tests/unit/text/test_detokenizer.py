"""The reference is the library's own decode of the whole sequence (CASES 9)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import CORPUS, TOKENIZERS

from edge_infer.text import StreamDetokenizer, Tokenizer

BY_KIND = {kind: build() for kind, build in TOKENIZERS.items()}
TOKEN_IDS = st.lists(st.integers(0, 1000), max_size=40)


def stream(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    detokenizer = StreamDetokenizer(tokenizer, **options)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


def has_invalid_bytes(tokenizer: Tokenizer, ids: list[int]) -> bool:
    joined = b"".join(tokenizer.token_bytes(i) for i in ids if i not in tokenizer.special_token_ids)
    try:
        joined.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False


@pytest.mark.parametrize("kind", BY_KIND)
@pytest.mark.parametrize("skip", [True, False])
@given(ids=TOKEN_IDS)
def test_the_pieces_join_to_what_decode_gives(kind: str, skip: bool, ids: list[int]) -> None:
    tokenizer = BY_KIND[kind]
    ids = [token_id % (tokenizer.vocab_size + 1) for token_id in ids]
    text = "".join(stream(tokenizer, ids, skip_special_tokens=skip))
    assert text == tokenizer.decode(ids, skip_special_tokens=skip)
    # the library turns a whole run of byte tokens into U+FFFD when one of them is invalid
    if not (kind.startswith("sentencepiece") and has_invalid_bytes(tokenizer, ids)):
        assert text == tokenizer.backend.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
@given(text=st.text(max_size=30))
def test_characters_split_over_tokens_are_never_cut(kind: str, text: str) -> None:
    tokenizer = BY_KIND[kind]
    spell = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    ids = [spell[bytes([byte])] for byte in text.encode()]
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == text
    # each character comes out whole with its last byte, not later
    seen = b""
    for byte, piece in zip(text.encode(), pieces, strict=False):
        seen += bytes([byte])
        assert piece == (seen.decode() if is_complete(seen) else "")
        seen = b"" if piece else seen
    assert pieces[-1] == ""


def is_complete(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
@given(data=st.binary(max_size=12))
def test_only_bytes_that_are_not_utf8_are_replaced(kind: str, data: bytes) -> None:
    tokenizer = BY_KIND[kind]
    spell = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    ids = [spell[bytes([byte])] for byte in data]
    expected = data.decode("utf-8", errors="replace")
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids) == expected


def test_an_invalid_byte_is_not_held_back() -> None:
    tokenizer = BY_KIND["sentencepiece"]
    spell = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    ids = [spell[bytes([byte])] for byte in b"\xe6\x97a\xff\xf0\x9f"]
    assert stream(tokenizer, ids) == ["", "", "\ufffda", "\ufffd", "", "", "\ufffd"]


def test_an_incomplete_character_at_the_end_is_replaced_once() -> None:
    tokenizer = BY_KIND["byte-level"]
    ids = tokenizer.encode("🤗")[:-1]
    pieces = stream(tokenizer, ids)
    assert pieces == [""] * len(ids) + ["\ufffd"]


@pytest.mark.parametrize("text", CORPUS)
def test_text_streams_token_by_token(text: str) -> None:
    tokenizer = BY_KIND["byte-level"]
    pieces = stream(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text
    assert sum(1 for piece in pieces if piece) > len(pieces) / 2


def test_the_first_space_of_sentencepiece() -> None:
    tokenizer = BY_KIND["sentencepiece-strip"]
    ids = [tokenizer.token_id("<s>"), tokenizer.token_id("▁the"), tokenizer.token_id("▁the")]
    assert stream(tokenizer, ids) == ["", "the", " the", ""]
    assert stream(tokenizer, ids, continues=True) == ["", " the", " the", ""]
    outside = tokenizer.vocab_size
    assert stream(tokenizer, [outside, *ids]) == ["", "", "the", " the", ""]
