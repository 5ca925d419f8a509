"""Processors against transformers' own, distributions against exact probabilities."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_infer.engine import truncation
from edge_infer.engine.sampler import Sampler, SamplerError, bad_word_token_ids
from edge_infer.engine.sampling_params import SamplingParams

VOCAB = 40


def logits_of(seed: int, size: int = VOCAB, scale: float = 2.0) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = logits.astype(np.float64)
    mass = np.exp(wide - wide.max())
    return mass / mass.sum()


def greedy(**options: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, **options)


def make(params: SamplingParams, size: int = VOCAB, **options: Any) -> Sampler:
    return Sampler(params, size, **options)


# --- Greedy --------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 3000))
@settings(deadline=None)
def test_greedy_takes_the_first_of_the_largest(seed: int, size: int) -> None:
    logits = np.round(logits_of(seed, size))  # rounding makes ties
    expected = logits.tolist().index(max(logits.tolist()))
    assert make(greedy(), size).sample(logits).token_id == expected


def test_the_logits_are_left_as_they_are() -> None:
    logits = logits_of(1)
    before = logits.copy()
    params = greedy(repetition_penalty=1.5, logit_bias={1: 5.0}, min_tokens=1, logprobs=3)
    make(params, eos_token_ids=[2], bad_word_ids=[[3]]).sample(logits)
    np.testing.assert_array_equal(logits, before)


# --- Processors, against transformers ------------------------------------------------------------


def sequence(params: SamplingParams, steps: int, **options: Any) -> list[int]:
    """Tokens sampled over `steps`, each from other logits."""
    sampler = make(params, **options)
    return [sampler.sample(logits_of(step)).token_id for step in range(steps)]


def transformers_greedy(steps: int, prompt: Sequence[int], processors: Sequence[Any]) -> list[int]:
    torch = pytest.importorskip("torch")
    tokens = list(prompt)
    for step in range(steps):
        scores = torch.from_numpy(logits_of(step))[None]
        for processor in processors:
            scores = processor(torch.tensor([tokens], dtype=torch.long), scores)
        tokens.append(int(scores.argmax()))
    return tokens[len(prompt) :]


def processor(name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(pytest.importorskip("transformers"), name)(*args, **kwargs)


@pytest.mark.parametrize("penalty", [0.7, 1.3, 3.0])
def test_repetition_penalty(penalty: float) -> None:
    prompt = [1, 2, 2, 30]
    expected = transformers_greedy(
        30, prompt, [processor("RepetitionPenaltyLogitsProcessor", penalty)]
    )
    ours = sequence(greedy(repetition_penalty=penalty), 30, prompt_token_ids=prompt)
    assert ours == expected
    assert ours != sequence(greedy(), 30)


def test_bad_words() -> None:
    free = sequence(greedy(), 30)
    banned = [[free[0]], free[4:6], free[9:12]]
    expected = transformers_greedy(30, [], [processor("NoBadWordsLogitsProcessor", banned)])
    ours = sequence(greedy(), 30, bad_word_ids=banned)
    assert ours == expected
    assert ours != free


def test_min_tokens_and_stop_tokens() -> None:
    free = sequence(greedy(), 30)
    end = free[0]
    least = processor("MinNewTokensLengthLogitsProcessor", 0, 5, end, device="cpu")
    expected = transformers_greedy(30, [], [least])
    assert sequence(greedy(min_tokens=5), 30, eos_token_ids=[end]) == expected != free
    assert sequence(greedy(min_tokens=5, stop_token_ids=[end]), 30) == expected
    # an end token that is ignored need not be kept from coming early
    assert sequence(greedy(min_tokens=5, ignore_eos=True), 30, eos_token_ids=[end]) == free


def test_all_penalties_together() -> None:
    prompt = [0, 1, 2, 3]
    params = greedy(presence_penalty=0.6, frequency_penalty=0.4, repetition_penalty=1.2)
    sampler = make(params, prompt_token_ids=prompt)
    counts: Counter[int] = Counter()
    for step in range(200):
        logits = logits_of(step % 7).tolist()
        for token_id in {*prompt, *counts}:  # repetition: prompt and output
            logits[token_id] *= 1 / 1.2 if logits[token_id] > 0 else 1.2
        for token_id, count in counts.items():  # presence and frequency: output only
            logits[token_id] -= 0.6 + 0.4 * count
        sampled = sampler.sample(logits_of(step % 7)).token_id
        assert sampled == int(np.argmax(logits))
        counts[sampled] += 1
    assert len(counts) > 10


def test_presence_and_frequency_penalties_leave_the_prompt_alone() -> None:
    logits = np.array([1.0, 0.9], np.float32)
    params = greedy(presence_penalty=2.0, frequency_penalty=2.0)
    sampler = make(params, 2, prompt_token_ids=[0, 0])
    assert [sampler.sample(logits).token_id for _ in range(2)] == [0, 1]
    params = greedy(presence_penalty=2.0, repetition_penalty=1.05)
    assert make(params, 2, prompt_token_ids=[0, 0]).sample(logits).token_id == 0


def test_penalties_remember_many_distinct_tokens() -> None:
    size = 500
    sampler = make(greedy(presence_penalty=2.0), size)
    flat = np.zeros(size, np.float32)
    assert [sampler.sample(flat).token_id for _ in range(size)] == list(range(size))


def test_logit_bias() -> None:
    logits = logits_of(3)
    logits[7] = logits.max() - 50.0
    params = greedy(logit_bias={7: 51.0, int(logits.argmax()): -0.5})
    assert make(params).sample(logits).token_id == 7


@given(
    seed=st.integers(0, 2**32 - 1),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, -1, 1, 2, 7, VOCAB, 1000]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 1e-6]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
@settings(max_examples=200, deadline=None)
def test_what_may_be_sampled_is_what_transformers_keeps(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    torch = pytest.importorskip("torch")
    logits = logits_of(seed)
    scores = torch.from_numpy(logits.astype(np.float64))[None] / temperature
    warpers = []
    if min_p > 0.0:
        warpers.append(processor("MinPLogitsWarper", min_p))
    if top_k > 0:
        warpers.append(processor("TopKLogitsWarper", top_k))
    if top_p < 1.0:
        warpers.append(processor("TopPLogitsWarper", top_p))
    for warper in warpers:
        scores = warper(None, scores)
    expected = torch.softmax(scores, -1)[0].numpy()

    ids, mass = truncation.candidates(
        logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    ours = np.zeros(VOCAB)
    ours[slice(None) if ids is None else ids] = mass / mass.sum(dtype=np.float64)
    np.testing.assert_array_equal(ours > 0, expected > 0)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


# --- Large vocabularies, where only part is sorted -----------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 0.5, 2.5, 8.0])
@pytest.mark.parametrize("size", [8 * 1024, 151_936])
def test_truncation_of_a_large_vocabulary(size: int, scale: float) -> None:
    logits = np.round(logits_of(5, size, scale), 1)  # with many ties
    descending = np.sort(logits)[::-1]
    order = np.lexsort((np.arange(size), -logits))
    for k in (1, 2, 100, 512, 513, 5000, size):
        assert truncation.kth_largest(logits, k) == descending[k - 1]
        np.testing.assert_array_equal(truncation.largest(logits, k), order[:k])
    probabilities = softmax(logits)[order]
    for top_p in (1e-9, 0.1, 0.9, 0.999):
        ids, mass = truncation.candidates(logits, temperature=1.0, top_k=0, top_p=top_p, min_p=0.0)
        assert ids is not None
        reached = np.cumsum(probabilities)
        # rounding may move the edge of a flat distribution by a few tokens of many
        count = 1 + int(np.searchsorted(reached, top_p))
        assert abs(len(ids) - count) <= 1e-4 * count
        np.testing.assert_array_equal(ids, np.sort(order[: len(ids)]))
        np.testing.assert_allclose(mass, np.exp(logits[ids] - logits.max()), rtol=1e-6)


@given(st.data())
@settings(deadline=None)
def test_draw_is_the_inverse_of_the_cumulative_distribution(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 2, 1023, 1024, 1025, 5000]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    # small integers: every sum is exact, so the index must be too
    mass = rng.integers(0, 3, size).astype(np.float32)
    mass[rng.integers(0, size)] = 1.0
    uniform = data.draw(st.floats(0.0, 1.0, exclude_max=True))
    index = truncation.draw(mass, uniform)
    reached = np.cumsum(mass.astype(np.float64))
    assert mass[index] > 0
    assert index == min(int(np.searchsorted(reached, uniform * reached[-1], "right")), size - 1)


def test_draw_at_the_ends_skips_what_has_no_weight() -> None:
    mass = np.zeros(3000, np.float32)
    mass[[5, 2000]] = 1.0
    assert truncation.draw(mass, 0.0) == 5
    assert truncation.draw(mass, float(np.nextafter(1.0, 0.0))) == 2000
    mass = np.full(100_000, np.float32(0.1))
    assert truncation.draw(mass, float(np.nextafter(1.0, 0.0))) == 99_999


# --- Distributions and seeds ---------------------------------------------------------------------

# chi-square at 0.999 for 1 to 9 degrees of freedom (Pearson)
_CRITICAL = [10.83, 13.82, 16.27, 18.47, 20.52, 22.46, 24.32, 26.12, 27.88]


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.2}, {"seed": 9}],
)
def test_frequencies_match_the_probabilities(options: dict[str, Any]) -> None:
    logits = logits_of(11, 10, scale=1.0)
    params = SamplingParams(**{"seed": 1, **options})
    probabilities = softmax(logits / np.float32(params.temperature))
    order = np.argsort(-probabilities)
    kept = 10
    if params.top_k > 0:
        kept = params.top_k
    if params.top_p < 1.0:
        kept = 1 + int(np.searchsorted(np.cumsum(probabilities[order]), params.top_p))
    if params.min_p > 0.0:
        kept = int((probabilities >= params.min_p * probabilities.max()).sum())
    probabilities[order[kept:]] = 0.0
    probabilities /= probabilities.sum()

    draws = 20_000
    sampler = make(params, 10)
    counts = np.bincount([sampler.sample(logits).token_id for _ in range(draws)], minlength=10)
    assert counts[probabilities == 0.0].sum() == 0
    likely = probabilities > 0.0
    expected = probabilities[likely] * draws
    assert ((counts[likely] - expected) ** 2 / expected).sum() < _CRITICAL[kept - 2]


def test_a_seed_repeats_and_other_sequences_do_not_disturb_it() -> None:
    def alone(seed: int | None) -> list[int]:
        return sequence(SamplingParams(seed=seed), 50)

    first, other = make(SamplingParams(seed=7)), make(SamplingParams())
    beside = []
    for step in range(50):
        other.sample(logits_of(step))
        beside.append(first.sample(logits_of(step)).token_id)
    assert beside == alone(7)
    assert alone(7) != alone(8)
    assert alone(None) != alone(None)
    assert alone(-1) == alone(-1)


def test_a_tiny_top_p_is_greedy() -> None:
    assert sequence(SamplingParams(top_p=1e-9, seed=3), 30) == sequence(greedy(), 30)


# --- Log-probabilities ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [VOCAB, 50_000])
def test_logprobs_are_those_of_the_models_logits(size: int) -> None:
    logits = logits_of(2, size)
    params = SamplingParams(
        seed=1, temperature=0.3, logit_bias={4: 100.0}, repetition_penalty=2.0, logprobs=5
    )
    sampled = make(params, size).sample(logits)
    expected = np.log(softmax(logits))
    assert sampled.token_id == 4
    assert sampled.logprob == pytest.approx(expected[4], abs=1e-5)
    order = np.lexsort((np.arange(size), -expected))[:5]
    assert sampled.top_logprobs is not None
    assert [token_id for token_id, _ in sampled.top_logprobs] == list(order)
    assert [value for _, value in sampled.top_logprobs] == pytest.approx(
        list(expected[order]), abs=1e-5
    )


def test_how_many_logprobs() -> None:
    logits = logits_of(2)
    none = make(greedy()).sample(logits)
    assert (none.logprob, none.top_logprobs) == (None, None)
    only = make(greedy(logprobs=0)).sample(logits)
    assert only.logprob is not None
    assert only.top_logprobs == ()
    few = make(greedy(logprobs=20), 3).sample(logits_of(2, 3))
    assert few.top_logprobs is not None
    assert len(few.top_logprobs) == 3


# --- Logits that cannot be sampled ---------------------------------------------------------------


@pytest.mark.parametrize("params", [greedy(), SamplingParams(), SamplingParams(top_p=0.5)])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite(params: SamplingParams, value: float) -> None:
    logits = logits_of(1)
    logits[17] = value
    with pytest.raises(SamplerError, match="at token 17"):
        make(params).sample(logits)


def test_everything_masked() -> None:
    with pytest.raises(SamplerError, match="no token is left in the model's logits"):
        make(greedy()).sample(np.full(VOCAB, -np.inf, np.float32))
    banned = [[token_id] for token_id in range(VOCAB)]
    with pytest.raises(SamplerError, match="after biases, bans and penalties"):
        make(SamplingParams(), bad_word_ids=banned).sample(logits_of(1))


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"temperature": 1e-5}]
)
def test_masked_and_extreme_logits(options: dict[str, Any]) -> None:
    logits = np.full(VOCAB, -np.inf, np.float32)
    logits[[3, 8]] = [3e38, -3e38]
    sampler = make(SamplingParams(seed=1, **options))
    assert {sampler.sample(logits).token_id for _ in range(50)} == {3}


def test_logits_of_another_shape_or_type() -> None:
    sampler = make(greedy())
    with pytest.raises(SamplerError, match=r"float32 \(41,\); float32 \(40,\) is expected"):
        sampler.sample(logits_of(1, 41))
    with pytest.raises(SamplerError, match="float64"):
        sampler.sample(logits_of(1).astype(np.float64))


def test_token_ids_outside_the_vocabulary() -> None:
    with pytest.raises(ValueError, match="stop_token_ids contains 40"):
        make(SamplingParams(stop_token_ids=[40]))
    with pytest.raises(ValueError, match="logit_bias contains 99"):
        make(SamplingParams(logit_bias={99: 1.0}))


# --- Bad words as text ---------------------------------------------------------------------------


class _Words:
    """Encodes by table, as a tokenizer would."""

    table: ClassVar = {
        "cat": [5],
        " cat": [6],
        "catfish": [5, 9],
        " catfish": [6, 9],
        "日": [20, 21],
        " 日": [4, 20, 21],
    }

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return self.table[text]


def test_bad_words_are_banned_at_the_start_and_after_a_space() -> None:
    tokenizer: Any = _Words()
    assert bad_word_token_ids(["cat"], tokenizer) == [[5], [6]]
    assert bad_word_token_ids([" catfish"], tokenizer) == [[5, 9], [6, 9]]
    assert bad_word_token_ids(["日"], tokenizer) == [[20, 21]]
