"""Summaries of repeated measurements: medians with spread, and paired ratios with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Below this many repetitions google/benchmark, too, calls a comparison unreliable.
RELIABLE_REPETITIONS = 9
BOOTSTRAP_SAMPLES = 10_000


@dataclass(frozen=True)
class Summary:
    """Median and range of one figure, in the figure's own unit."""

    samples: list[float]
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class RatioSummary:
    """Ratio of two arms, one value per pass in which both ran.

    Attributes:
        ratios: value of the first arm over that of the second, in pass order.
        ci_low, ci_high: 95% percentile-bootstrap interval of the median.
        reliable: whether there were at least RELIABLE_REPETITIONS passes.
    """

    ratios: list[float]
    median: float
    ci_low: float
    ci_high: float
    reliable: bool


def summarize(samples: Sequence[float]) -> Summary:
    """Return the median and range of at least one positive sample.

    Raises:
        ValueError: if there is no sample, or one is not a positive finite number.
    """
    if not samples:
        raise ValueError("no samples to summarize")
    values = np.asarray(samples, dtype=np.float64)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"samples must be positive and finite, got {list(samples)}")
    return Summary(
        [float(value) for value in values],
        float(np.median(values)),
        float(values.min()),
        float(values.max()),
    )


def paired_ratio(first: Sequence[float], second: Sequence[float], seed: int) -> RatioSummary:
    """Return the per-pass ratios first/second with a bootstrap interval of their median.

    Machine speed drifts between passes, so only values of the same pass are divided.

    Raises:
        ValueError: if the lengths differ or a sample is unusable.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} samples cannot be paired with {len(second)}")
    ratios = np.asarray(summarize(first).samples) / np.asarray(summarize(second).samples)
    draws = np.random.default_rng(seed).integers(0, len(ratios), (BOOTSTRAP_SAMPLES, len(ratios)))
    medians = np.median(ratios[draws], axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return RatioSummary(
        [float(ratio) for ratio in ratios],
        float(np.median(ratios)),
        float(low),
        float(high),
        len(ratios) >= RELIABLE_REPETITIONS,
    )
