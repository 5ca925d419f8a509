"""Medians, ranges and paired ratios against hand-computed and statistics-module values."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from harness.stats import paired_ratio, summarize


def test_summary_is_median_and_range() -> None:
    summary = summarize([4.0, 1.0, 3.0, 2.0])
    assert (summary.median, summary.low, summary.high) == (2.5, 1.0, 4.0)
    assert summary.samples == [4.0, 1.0, 3.0, 2.0]


@pytest.mark.parametrize("samples", [[], [1.0, 0.0], [1.0, -2.0], [float("nan")], [float("inf")]])
def test_unusable_samples_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="samples"):
        summarize(samples)


def test_ratio_is_paired_so_common_drift_cancels() -> None:
    drift = [1.0, 0.5, 2.0, 0.7, 1.3]
    ratio = paired_ratio([30.0 * d for d in drift], [20.0 * d for d in drift], seed=1)
    assert ratio.median == pytest.approx(1.5)
    assert ratio.ci_low == pytest.approx(1.5)
    assert ratio.ci_high == pytest.approx(1.5)


def test_median_of_ratios_is_not_ratio_of_medians() -> None:
    first, second = [1.0, 10.0, 100.0], [1.0, 5.0, 400.0]
    ratio = paired_ratio(first, second, seed=0)
    assert ratio.ratios == [1.0, 2.0, 0.25]
    assert ratio.median == 1.0
    assert statistics.median(first) / statistics.median(second) == 2.0


def test_interval_brackets_the_median_and_is_seeded() -> None:
    rng = np.random.default_rng(5)
    first = list(rng.normal(12.0, 1.0, 15))
    second = list(rng.normal(10.0, 1.0, 15))
    ratio = paired_ratio(first, second, seed=3)
    assert min(ratio.ratios) <= ratio.ci_low < ratio.median < ratio.ci_high <= max(ratio.ratios)
    assert ratio == paired_ratio(first, second, seed=3)


def test_interval_agrees_with_an_exact_enumeration_of_three_values() -> None:
    # 27 equally likely resamples of {1, 2, 3}: the median is 1 in 7, 2 in 13 and 3 in 7 of them.
    ratio = paired_ratio([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], seed=0)
    assert (ratio.ci_low, ratio.median, ratio.ci_high) == (1.0, 2.0, 3.0)


def test_few_passes_are_called_unreliable() -> None:
    assert not paired_ratio([1.0] * 8, [1.0] * 8, seed=0).reliable
    assert paired_ratio([1.0] * 9, [1.0] * 9, seed=0).reliable


def test_unequal_lengths_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="2 samples cannot be paired with 1"):
        paired_ratio([1.0, 2.0], [1.0], seed=0)
