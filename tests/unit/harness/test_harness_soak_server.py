"""A soak of a made-up server: what is right passes, and every fault is found."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from harness import soak_report, soak_server
from harness.soak_report import Sample, failed_checks, memory_growth, queue_figures, settled
from harness.soak_traffic import Tally

FAKE = Path(__file__).with_name("fake_server.py")


def soak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **faults: Any
) -> tuple[int, dict[str, Any]]:
    """Return exit status and report of a one-second soak."""
    monkeypatch.setattr(soak_server, "SAMPLE_SECONDS", 0.2)
    monkeypatch.setattr(soak_server, "DRAIN_SECONDS", 0.1)
    monkeypatch.setattr(soak_report, "MAX_GROWTH", 10.0)  # a Python server's memory is its own
    command = shlex.join([sys.executable, str(FAKE), json.dumps(faults)])
    sizes = ["--streams", "4", "--minutes", "0.02", "--questions", "8", "--max-gen", "20"]
    ours = ["--model", "m", "--edge-infer", command]
    status = soak_server.main(["test", *ours, *sizes, "--results", str(tmp_path)])
    (path,) = tmp_path.glob("*/servers/test.json")
    return status, json.loads(path.read_text())


def test_a_server_without_fault_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = soak(tmp_path, monkeypatch)
    assert report["failed_checks"] == []
    assert status == 0
    assert report["outcomes"]["completed"] > 20
    assert report["outcomes"]["disconnected"] > 0
    assert sum(report["compared"].values()) > 10
    assert report["samples"][-1]["anonymous_bytes"] > 1 << 20
    assert {"kind", "git_commit", "machine", "command", "note"} <= set(report)
    printed = capsys.readouterr().out
    assert "all checks passed" in printed
    (markdown,) = tmp_path.glob("*/servers/test.md")
    assert markdown.read_text() in printed


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"change_after": 20}, r"\d+ requests differing, first: question \d+"),
        ({"leak": True}, r"kv_usage is 0\.25 after the load, must be 0"),
        ({"forget_done": True}, r"\d+ requests failed, first: .* does not end with \[DONE\]"),
    ],
)
def test_a_fault_fails_the_soak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any], message: str
) -> None:
    status, report = soak(tmp_path, monkeypatch, **fault)
    assert status == 1
    assert any(re.match(message, text) for text in report["failed_checks"])


def sample(seconds: float, anonymous: int, kv: int = 0, **gauges: float) -> Sample:
    queues = {"running": 0.0, "waiting": 0.0, "kv_usage": 0.0, **gauges}
    return Sample(seconds, anonymous, 0, kv, **queues)


def test_growth_is_measured_from_a_minute_on() -> None:
    samples = [sample(50, 10), sample(61, 200, 100), sample(290, 203, 100)]
    growth = memory_growth(samples, sample(301, 206, 104), 5.0)
    assert growth == {
        "from_seconds": 61,
        "anonymous": pytest.approx(0.03),
        "without_kv": pytest.approx(0.02),
    }


def test_growth_of_a_short_soak_is_measured_from_its_half() -> None:
    assert settled([sample(10, 1), sample(20, 2), sample(30, 3)], 0.5).seconds == 20
    with pytest.raises(ValueError, match="too short"):
        settled([sample(10, 1)], 0.5)


def test_what_fails_is_told() -> None:
    tally = Tally(Counter(failed=2, differing=1), Counter(), failures=["first of all"])
    end = sample(300, 1, running=3.0)
    assert failed_checks(tally, end, {"anonymous": 0.03, "without_kv": 0.01}, -9) == [
        "2 requests failed, first: first of all",
        "1 requests differing, first: first of all",
        "no answer was compared",
        "running is 3 after the load, must be 0",
        "anonymous memory grew by 3.0%, allowed are 2% (1.0% without the KV cache)",
        "the server ended with status -9 on SIGTERM",
    ]


def test_queues_have_mean_and_peak() -> None:
    samples = [sample(1, 1, waiting=2.0), sample(2, 1, waiting=4.0)]
    queues = queue_figures(samples)
    assert (queues["waiting_mean"], queues["waiting_max"], queues["running_max"]) == (3.0, 4.0, 0.0)
