"""Masks over the vocabulary, what they accept, what ends a text, and the free text before it."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_infer.grammar import GrammarCompiler, GrammarError, Matcher, StructuredOutputs
from edge_infer.text import Tokenizer

VOCAB = 49152


@pytest.fixture(scope="module")
def end(smollm2: Tokenizer) -> int:
    return min(smollm2.eos_token_ids)


def allowed(matcher: Matcher) -> set[int]:
    logits = np.zeros(VOCAB, np.float32)
    matcher.mask(logits)
    return set(np.flatnonzero(logits == 0).tolist())


def texts(tokenizer: Tokenizer, token_ids: set[int]) -> set[bytes]:
    return {tokenizer.token_bytes(token_id) for token_id in token_ids}


def feed(tokenizer: Tokenizer, matcher: Matcher, text: str) -> None:
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        matcher.accept(token_id)


def started(compiler: GrammarCompiler, after: str | None = None, regex: str = "ab+") -> Matcher:
    return compiler.compile(StructuredOutputs(regex=regex, after=after)).matcher()


def test_a_mask_keeps_the_logits_of_what_may_follow(
    smollm2: Tokenizer, compiler: GrammarCompiler
) -> None:
    matcher = started(compiler, regex="[0-9]{2}")
    logits: NDArray[np.float32] = np.random.default_rng(0).standard_normal(VOCAB, np.float32)
    before = logits.copy()
    matcher.mask(logits)
    kept = np.isfinite(logits)
    np.testing.assert_array_equal(logits[kept], before[kept])
    assert np.all(logits[~kept] == -np.inf)
    found = texts(smollm2, set(np.flatnonzero(kept).tolist()))
    assert {text for text in found if len(text) == 1} == {b"%d" % digit for digit in range(10)}
    assert all(text.isdigit() and len(text) <= 2 for text in found)


def test_every_allowed_token_is_accepted_and_every_other_refused(
    smollm2: Tokenizer, compiler: GrammarCompiler
) -> None:
    grammar = compiler.compile(StructuredOutputs(json_schema={"type": "boolean"}))
    may = allowed(grammar.matcher())
    assert texts(smollm2, may) >= {b"t", b"f", b"true", b"false"}
    for token_id in may:
        grammar.matcher().accept(token_id)
    for token_id in sorted(set(range(VOCAB)) - may)[::500]:
        with pytest.raises(GrammarError, match=f"token {token_id} .* is not allowed"):
            grammar.matcher().accept(token_id)


def test_matchers_of_one_grammar_are_independent(
    smollm2: Tokenizer, compiler: GrammarCompiler
) -> None:
    grammar = compiler.compile(StructuredOutputs(regex="ab+"))
    first, second = grammar.matcher(), grammar.matcher()
    feed(smollm2, first, "a")
    assert allowed(first) != allowed(second)
    feed(smollm2, second, "a")
    assert allowed(first) == allowed(second)


def test_the_end_is_allowed_only_when_the_text_is_complete(
    smollm2: Tokenizer, compiler: GrammarCompiler, end: int
) -> None:
    matcher = started(compiler)
    feed(smollm2, matcher, "a")
    assert end not in allowed(matcher)
    with pytest.raises(GrammarError, match="is not allowed"):
        matcher.accept(end)
    feed(smollm2, matcher, "b")
    assert end in allowed(matcher)
    assert not matcher.is_terminated  # more may follow
    matcher.accept(end)
    assert matcher.is_terminated


def test_nothing_but_the_end_follows_a_text_that_cannot_go_on(
    smollm2: Tokenizer, compiler: GrammarCompiler
) -> None:
    matcher = started(compiler, regex="ab")
    feed(smollm2, matcher, "ab")
    assert matcher.is_terminated
    assert allowed(matcher) == set(smollm2.eos_token_ids)
    with pytest.raises(GrammarError, match="is not allowed"):
        feed(smollm2, matcher, "a")


def test_special_tokens_are_not_spelled_text(smollm2: Tokenizer, compiler: GrammarCompiler) -> None:
    matcher = started(compiler, regex="<\\|im_start\\|>x|[^x]{2,}")
    assert not allowed(matcher) & set(smollm2.special_token_ids)


def test_logits_of_another_size_are_refused(compiler: GrammarCompiler) -> None:
    with pytest.raises(ValueError, match=r"logits are \(3,\); \(49152,\) is expected"):
        started(compiler).mask(np.zeros(3, np.float32))


def test_a_token_beyond_the_vocabulary_is_refused(compiler: GrammarCompiler) -> None:
    for token_id in (VOCAB, -1):
        with pytest.raises(GrammarError, match=f"token {token_id} "):
            started(compiler).accept(token_id)


# --- After ---------------------------------------------------------------------------------------


def test_before_after_all_is_free_but_the_end(
    smollm2: Tokenizer, compiler: GrammarCompiler, end: int
) -> None:
    matcher = started(compiler, after="</think>")
    assert not matcher.is_terminated
    may = allowed(matcher)
    assert end not in may
    assert len(may) > VOCAB - 500
    feed(smollm2, matcher, "Anything, even ab or </thin")
    assert end not in allowed(matcher)
    feed(smollm2, matcher, "k>")
    assert texts(smollm2, allowed(matcher)) <= {b"a", b"ab", b"abb", b"abbb"}
    feed(smollm2, matcher, "abb")
    assert end in allowed(matcher)


@pytest.mark.parametrize("pieces", [["<", "/", "think", ">"], ["</think", ">"], ["</think>"]])
def test_after_may_come_in_any_pieces(
    smollm2: Tokenizer, compiler: GrammarCompiler, pieces: Sequence[str]
) -> None:
    matcher = started(compiler, after="</think>")
    for piece in pieces:
        feed(smollm2, matcher, piece)
    assert allowed(matcher) == allowed(started(compiler))


def test_a_token_that_runs_on_behind_after_must_begin_the_text(
    smollm2: Tokenizer, compiler: GrammarCompiler
) -> None:
    grammar = compiler.compile(StructuredOutputs(regex='"[a-z]{3}"', after="="))
    may = texts(smollm2, allowed(grammar.matcher()))
    running_on = {text.rpartition(b"=")[2] for text in may if b"=" in text} - {b""}
    assert running_on == {b'"'}  # others, such as =' and =[, are there in the vocabulary
    matcher = grammar.matcher()
    matcher.accept(next(t for t in range(VOCAB) if smollm2.token_bytes(t) == b'="'))
    feed(smollm2, matcher, 'abc"')
    assert matcher.is_terminated


def test_choices_that_begin_alike_end_where_they_may(
    smollm2: Tokenizer, compiler: GrammarCompiler, end: int
) -> None:
    matcher = compiler.compile(StructuredOutputs(choice=["a", "ab"])).matcher()
    feed(smollm2, matcher, "a")
    assert allowed(matcher) == {end, *smollm2.encode("b")} | set(smollm2.eos_token_ids)
