"""Read the text that a server's /metrics prints."""

from __future__ import annotations

import re

from harness.arm import ReadError

METRIC_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})?\s+(\S+)", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def metric_samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Return name, labels and value of every sample in a Prometheus text."""
    return [
        (name, dict(LABEL.findall(labels or "")), float(value))
        for name, labels, value in METRIC_LINE.findall(text)
    ]


def metric(text: str, name: str) -> float:
    """Return the sum of a metric over its label sets.

    Raises:
        ReadError: if there is none of that name.
    """
    values = [value for found, _, value in metric_samples(text) if found == name]
    if not values:
        raise ReadError(f"/metrics has no {name}")
    return sum(values)
