from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from edge_infer.engine.sampling_params import SamplingParams


def test_defaults_change_nothing() -> None:
    params = SamplingParams()
    assert params.temperature == 1.0
    assert params.max_tokens is None
    assert (params.top_k, params.top_p, params.min_p) == (0, 1.0, 0.0)
    assert not params.greedy


def test_values_are_kept_in_one_form() -> None:
    params = SamplingParams(
        stop="\n",
        stop_token_ids=[np.int64(5)],
        bad_words=["x"],
        logit_bias={3: 1},
        temperature=0,
        seed=np.int32(7),
    )
    assert params.stop == ("\n",)
    assert params.stop_token_ids == (5,)
    assert params.bad_words == ("x",)
    assert params.logit_bias == {3: 1.0}
    assert params.greedy
    assert type(params.seed) is int
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams(stop=[]) == SamplingParams()


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("max_tokens", 0, "at least 1"),
        ("min_tokens", -1, "at least 0"),
        ("temperature", -0.1, "at least 0.0"),
        ("temperature", float("nan"), "at least 0.0"),
        ("temperature", float("inf"), "at least 0.0"),
        ("top_k", -2, "at least -1"),
        ("top_p", 0.0, "more than 0.0 and at most 1.0"),
        ("top_p", 1.01, "more than 0.0 and at most 1.0"),
        ("min_p", 1.5, "at least 0.0 and at most 1.0"),
        ("presence_penalty", 2.5, "at least -2.0 and at most 2.0"),
        ("frequency_penalty", -3, "at least -2.0 and at most 2.0"),
        ("repetition_penalty", 0.0, "at least 0.001"),
        ("temperature", 1e46, "at most 1000"),
        ("seed", 2**64, "between"),
        ("logprobs", 21, "between 0 and 20"),
        ("logprobs", -1, "between 0 and 20"),
        ("stop", [""], "empty string"),
        ("stop", ["x"] * 65, "at most 64"),
        ("bad_words", [""], "empty string"),
        ("stop_token_ids", [-1], "at least 0"),
        ("logit_bias", {1: 101.0}, "between -100.0 and 100.0"),
        ("logit_bias", {1: float("nan")}, "between -100.0 and 100.0"),
        ("logit_bias", {-1: 1.0}, "at least 0"),
    ],
)
def test_values_out_of_range(field: str, value: Any, limit: str) -> None:
    with pytest.raises(ValueError, match=limit) as error:
        SamplingParams(**{field: value})
    assert field in str(error.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 1.0),
        ("max_tokens", True),
        ("min_tokens", None),
        ("temperature", "1"),
        ("temperature", None),
        ("top_k", 1.5),
        ("seed", "x"),
        ("stop", 5),
        ("stop", [5]),
        ("stop", None),
        ("bad_words", "word"),
        ("stop_token_ids", "12"),
        ("stop_token_ids", [1.5]),
        ("stop_token_ids", 5),
        ("logit_bias", [1]),
        ("logit_bias", {"1": 1.0}),
        ("logit_bias", {1: "x"}),
        ("ignore_eos", 1),
        ("skip_special_tokens", None),
    ],
)
def test_wrong_types(field: str, value: Any) -> None:
    with pytest.raises(TypeError, match=field):
        SamplingParams(**{field: value})


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    with pytest.raises(ValueError, match="min_tokens is 5; it must be at most max_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4)
    SamplingParams(min_tokens=4, max_tokens=4)


def test_unknown_fields_positional_values_and_changes_are_refused() -> None:
    unknown: dict[str, Any] = {"temprature": 0.5}
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(**unknown)
    with pytest.raises(TypeError):
        SamplingParams(5)  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        SamplingParams().temperature = 0.5  # type: ignore[misc]
