"""Interleaving, failures, and the stored result of a whole comparison, with fake engines."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import compare_llama, comparison
from harness.arm import Arm, Run, run
from harness.edge_infer_arm import EdgeInferBench
from harness.machine import describe
from test_harness_arm import FAKE, FakeArm, bench_tests


def test_passes_come_in_mirrored_pairs() -> None:
    orders = comparison.schedule(["a", "b", "c"], 5, seed=4)
    assert len(orders) == 5
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert orders[1] == orders[0][::-1]
    assert orders[3] == orders[2][::-1]
    assert orders == comparison.schedule(["a", "b", "c"], 5, seed=4)
    assert len({tuple(comparison.schedule(["a", "b", "c"], 1, seed)[0]) for seed in range(40)}) == 6


def compare(tmp_path: Path, arms: list[Arm], monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    """Run the command with these arms instead of real engines."""
    monkeypatch.setattr(compare_llama, "make_arms", lambda *_: arms)
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    files = ["--gguf", str(model), "--results", str(tmp_path / "results")]
    tests = ["-p", "8", "-n", "4", "-d", "0", "--timeout", "60"]
    return compare_llama.main(["test", *files, *tests, *more])


def stored(tmp_path: Path) -> dict[str, Any]:
    (path,) = (tmp_path / "results" / describe().slug).iterdir()
    assert path.name.endswith("-test.json")
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def fake(name: str, prefill: float, decode: float, **script: Any) -> FakeArm:
    speeds = json.dumps({"pp8": prefill, "tg4": decode})
    return FakeArm(name, stdout=speeds, **script)


def test_a_comparison_runs_every_arm_in_every_pass_in_the_stored_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    arms: list[Arm] = [
        fake("edge-infer", 30.0, 9.0, log=str(log), tag="edge-infer"),
        fake("peer", 20.0, 10.0, log=str(log), tag="peer"),
    ]
    monkeypatch.setattr(comparison, "_path", lambda _: "fake path")
    assert compare(tmp_path, arms, monkeypatch, "--passes", "3", "--note", "made up") == 0
    result = stored(tmp_path)
    ran = log.read_text().split()
    assert ran[:6] == [name for order in result["orders"] for name in order]
    assert sorted(ran[6:]) == ["edge-infer", "peer"]
    assert result["schema_version"] == comparison.SCHEMA_VERSION
    assert result["arms"]["peer"]["figures"]["pp8"]["samples"] == [20.0, 20.0, 20.0]
    assert result["ratios"]["edge-infer / peer"]["pp8"]["median"] == pytest.approx(1.5)
    assert result["ratios"]["edge-infer / peer"]["tg4"]["ci_low"] == pytest.approx(0.9)
    assert [one["pass"] for one in result["runs"]] == [0, 0, 1, 1, 2, 2, None, None]
    (peak,) = result["arms"]["edge-infer"]["peak_memory"]
    assert peak["total_bytes"] >= peak["anonymous_bytes"] + peak["file_bytes"] > 0
    printed = capsys.readouterr().out
    assert "made up" in printed
    assert "pp8 1.500 [1.500 to 1.500]" in printed
    assert "fewer than 9 passes" in printed


def test_an_arm_that_crashes_once_has_no_figure_and_no_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good: Arm = fake("edge-infer", 30.0, 9.0)
    peer: Arm = fake("peer", 20.0, 10.0)
    crashing = fake("peer", 20.0, 10.0, signal=4)
    launched = {"peer": 0}

    def crash_in_the_second_pass(arm: Arm, labels: list[str], seconds: float, memory: bool) -> Run:
        if arm.name == "peer":
            launched["peer"] += 1
            arm = crashing if launched["peer"] == 2 else arm
        return run(arm, labels, seconds, memory)

    monkeypatch.setattr(compare_llama, "run", crash_in_the_second_pass)
    monkeypatch.setattr(comparison, "_path", lambda _: "fake path")
    assert compare(tmp_path, [good, peer], monkeypatch, "--passes", "4") == 1
    result = stored(tmp_path)
    assert launched["peer"] == 2
    assert "figures" not in result["arms"]["peer"]
    assert "SIGILL" in result["arms"]["peer"]["failure"]
    assert result["ratios"] == {}
    assert result["arms"]["edge-infer"]["figures"]["pp8"]["samples"] == [30.0] * 4
    assert "| peer | failed: ended with signal SIGILL" in capsys.readouterr().out


def test_a_proof_that_changes_between_passes_is_a_failure() -> None:
    runs = [run(fake("x", 1.0, 1.0, stderr=text), ["pp8", "tg4"], 60) for text in ("amx", "avx2")]
    result = comparison.arm_result(fake("x", 1.0, 1.0), ["pp8", "tg4"], runs)
    assert result["failure"] == "the path proof differs between runs"
    assert "figures" not in result


def test_a_memory_run_gives_no_speed() -> None:
    timed = run(fake("x", 10.0, 1.0), ["pp8", "tg4"], 60)
    memory = run(fake("x", 2.0, 1.0, sleep=0.2), ["pp8", "tg4"], 60, sample_memory=True)
    result = comparison.arm_result(fake("x", 1.0, 1.0), ["pp8", "tg4"], [timed, memory])
    assert result["figures"]["pp8"]["samples"] == [10.0]
    assert len(result["peak_memory"]) == 1


def test_disturbed_runs_are_told() -> None:
    base = {
        "name": "x",
        "machine_slug": "m",
        "passes": 9,
        "note": "",
        "labels": ["pp8"],
        "arms": {},
        "ratios": {},
    }
    calm = {"steal": 0.0, "others": 0.01}
    busy = {"steal": 0.1, "others": 0.2}
    assert "disturbed" not in comparison.table({**base, "runs": [calm]})
    text = comparison.table({**base, "runs": [calm, busy]})
    assert "in 1 of 2 runs" in text
    assert "at most 30%" in text


def test_results_are_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(comparison, "_path", lambda _: "fake path")
    arms: list[Arm] = [fake("peer", 1.0, 1.0)]
    assert compare(tmp_path, arms, monkeypatch, "--passes", "1", "--memory-runs", "0") == 0
    before = stored(tmp_path)
    assert compare(tmp_path, arms, monkeypatch, "--passes", "1", "--memory-runs", "0") == 1
    assert "results are not overwritten" in capsys.readouterr().err
    assert stored(tmp_path) == before


def test_our_real_arm_through_a_fake_executable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = json.dumps({"stdout": json.dumps(bench_tests())})
    workload = compare_llama.Workload(512, 128, (0, 512), 2, 1)
    ours = EdgeInferBench([sys.executable, str(FAKE), script], "model", workload, "commit")
    assert compare(tmp_path, [ours], monkeypatch, "--passes", "2", "-p", "512", "-n", "128") == 0
    figures = stored(tmp_path)["arms"]["edge-infer"]["figures"]
    assert figures["pp512"]["median"] == 100.0
    assert "| avx2 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["../x", "--gguf", __file__], "name is"),
        (["x", "--gguf", "missing.gguf"], "is not a file"),
        (["x", "--gguf", __file__, "--passes", "0"], "passes is 0"),
        (["x", "--gguf", __file__, "--flash-attention", "2"], "must be of 0 and 1"),
        (["x", "--gguf", __file__, "-d", "0,-1"], "negative"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        compare_llama.parse_arguments(arguments)
    assert message in capsys.readouterr().err
