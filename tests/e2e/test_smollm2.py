"""SmolLM2-135M end to end: real text in, real text out, judged by transformers."""

from __future__ import annotations

from typing import Any

import pytest
from harness import fidelity

from edge_infer import Engine, SamplingParams, _native
from edge_infer.engine.errors import ContextLengthError, RequestError

# W4A16 rounds activations and the KV cache to bf16 (2^-9 relative). Over the prompts of
# harness/fidelity.py the largest lead of the reference's choice over ours that this was
# seen to cause is recorded under results/; it is bounded here with room.
GREEDY_MARGIN = 0.1
TOKENS = 3 * fidelity.WINDOW  # the full 20,480 tokens are harness/fidelity.py's


@pytest.fixture(scope="module")
def reference() -> Any:
    return fidelity.load_reference()


def test_the_demo_answer() -> None:
    with Engine("smollm2-135m", max_num_seqs=1) as engine:
        completion = engine.chat(
            [{"role": "user", "content": "What is the capital of France?"}],
            SamplingParams(temperature=0.0, max_tokens=32),
        )
    assert completion.text == "The capital of France is Paris."
    assert completion.finish_reason == "stop"


@pytest.mark.parametrize(("activations", "limit"), [("bf16", 0.005), ("int8", 0.01)])
def test_perplexity_stays_close(reference: Any, activations: str, limit: float) -> None:
    with fidelity.engine_for(activations) as engine:
        assert engine.tokenizer is not None
        token_ids = engine.tokenizer.encode(fidelity.fixed_text())[:TOKENS]
        result = fidelity.compare_logits(engine, reference, token_ids)
    assert abs(result.perplexity_change) < limit
    assert result.kl_divergence > 0  # not the reference compared with itself


@pytest.mark.parametrize(
    "isa", [i for i in _native.available_isas() if i != "scalar"] or ["scalar"]
)
def test_greedy_tokens_agree_within_the_margin(reference: Any, isa: str) -> None:
    with fidelity.engine_for("bf16", isa) as engine:
        result = fidelity.compare_greedy(engine, reference, max_tokens=24)
    assert result.worst_margin < GREEDY_MARGIN
    assert result.differing < 0.02 * result.tokens


def test_context_overflow_is_refused_with_both_counts() -> None:
    with Engine("smollm2-135m", max_model_len=32, max_num_seqs=1) as engine:
        params = SamplingParams(temperature=0.0)
        assert len(engine.generate([1] * 31, params).token_ids) == 1
        for length in (32, 33):
            with pytest.raises(ContextLengthError, match=rf"{length} tokens.*holds 32"):
                engine.generate([1] * length, params)
        with pytest.raises(ContextLengthError, match="max_tokens is 30"):
            engine.generate([1] * 8, SamplingParams(max_tokens=30))
        with pytest.raises(RequestError, match="empty"):
            engine.generate("", params)
        with pytest.raises(RequestError, match="token id 49152"):
            engine.generate([49152], params)


def test_batch_stream_and_single_agree() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24)
    prompts = ["The sun is", "Once upon a time", "def fibonacci(n):", "List of fruits:\n1."]
    # W4A8 sums have the same bits in any batch; a W4A16 batch rounds in another order.
    with Engine("smollm2-135m", max_num_seqs=4, max_model_len=256, activations="int8") as engine:
        together = engine.generate(prompts, params)
        for prompt, completion in zip(prompts, together, strict=True):
            chunks = list(engine.stream(prompt, params))
            assert "".join(c.text for c in chunks) == completion.text
            assert [t for c in chunks for t in c.token_ids] == completion.token_ids
            assert chunks[-1].finish_reason == completion.finish_reason
        assert engine.num_free_blocks == engine.model.plan.num_blocks


def test_more_sequences_than_memory_still_all_end() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=40)
    prompts = [[1, *range(100 + i, 120 + i)] for i in range(6)]
    with Engine("smollm2-135m", max_num_seqs=1, max_model_len=64) as engine:
        block_bytes = engine.model.plan.kv_block_bytes
    with Engine(
        "smollm2-135m", max_num_seqs=6, max_model_len=64, kv_budget_bytes=9 * block_bytes
    ) as engine:
        assert engine.model.plan.num_blocks == 9
        completions = engine.generate(prompts, params)
        assert engine.num_free_blocks == 9
        assert engine.num_preemptions > 0
    # What was computed again must still be the model's own choice at every token. A choice
    # that another chunking would not make is one between nearly equal logits.
    with fidelity.engine_for("auto") as engine:
        for completion in completions:
            assert len(completion.token_ids) == 40
            ids = completion.prompt_token_ids + completion.token_ids
            logits = fidelity.window_logits(engine, ids)[len(completion.prompt_token_ids) - 1 : -1]
            lead = logits.max(-1) - logits[range(40), completion.token_ids]
            assert lead.max() < 0.5


def test_closing_a_stream_frees_everything_at_once() -> None:
    with Engine("smollm2-135m", max_num_seqs=2, max_model_len=512) as engine:
        stream = engine.stream("Count to a thousand:", SamplingParams(max_tokens=400))
        next(stream)
        assert engine.num_running == 1
        stream.close()
        assert engine.num_running == 0
        never_read = engine.stream("Hello", SamplingParams(max_tokens=400))
        never_read.close()
        dropped = engine.stream("Hello", SamplingParams(max_tokens=400))
        del dropped
        engine.generate("Hi", SamplingParams(max_tokens=2))
        assert engine.num_running == 0
        assert engine.num_free_blocks == engine.model.plan.num_blocks


def test_stop_strings_never_leak() -> None:
    with Engine("smollm2-135m", max_num_seqs=1, max_model_len=256) as engine:
        free = engine.generate("One, two, three,", SamplingParams(temperature=0.0, max_tokens=30))
        stop = free.text[5:9]
        stopped = engine.generate(
            "One, two, three,", SamplingParams(temperature=0.0, max_tokens=30, stop=stop)
        )
    assert stopped.text == free.text[: free.text.index(stop)]
    assert stopped.finish_reason == "stop"
