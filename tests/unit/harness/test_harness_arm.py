"""Launching and reading one arm, with real processes that behave and misbehave."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.arm import ReadError, Reading, Workload, read_speeds, run, test_label
from harness.edge_infer_arm import EdgeInferBench

test_label.__test__ = False  # type: ignore[attr-defined]

FAKE = Path(__file__).with_name("fake_engine.py")
WORKLOAD = Workload(512, 128, (0, 512), 2, 1)


class FakeArm:
    """An arm whose process is fake_engine.py and whose figures are its JSON output."""

    def __init__(self, name: str = "fake", **script: Any) -> None:
        self.name = name
        self.command = [sys.executable, str(FAKE), json.dumps(script)]
        self.shown_command = ["fake"]
        self.about: dict[str, Any] = {}

    def read(self, stdout: str, stderr: str) -> Reading:
        if not stdout:
            raise ReadError("nothing printed")
        return Reading(json.loads(stdout), {"stderr": stderr})


def bench_test(n_prompt: int, n_gen: int, depth: int, speed: float) -> dict[str, Any]:
    return {
        "n_prompt": n_prompt,
        "n_gen": n_gen,
        "n_depth": depth,
        "avg_ts": speed,
        "isa": "avx2",
        "kernels": {"linear_int4": "linear_int4_avx2"},
        "weights_bytes": 1000,
    }


def bench_tests() -> list[dict[str, Any]]:
    return [
        bench_test(512, 0, 0, 100.0),
        bench_test(0, 128, 0, 20.0),
        bench_test(512, 0, 512, 90.0),
        bench_test(0, 128, 512, 18.0),
    ]


def ours() -> EdgeInferBench:
    return EdgeInferBench(["edge-infer"], "/somewhere/model", WORKLOAD, "commit")


def test_workload_labels_and_arguments() -> None:
    assert WORKLOAD.labels() == ["pp512", "tg128", "pp512@d512", "tg128@d512"]
    assert WORKLOAD.arguments() == (
        ["-p", "512", "-n", "128", "-d", "0,512", "-t", "2", "-r", "1", "-o", "json"]
    )


def test_a_good_run_has_figures_and_times() -> None:
    done = run(FakeArm(stdout='{"pp8": 5.0}', stderr="log"), ["pp8"], 60)
    assert done.failure is None
    assert done.reading == Reading({"pp8": 5.0}, {"stderr": "log"})
    assert done.wall_seconds > 0
    assert done.cpu_seconds > 0
    assert 0 <= done.others <= 1
    assert done.peak is None


def test_a_memory_run_samples_the_process() -> None:
    done = run(FakeArm(stdout='{"pp8": 5.0}', sleep=0.5), ["pp8"], 60, sample_memory=True)
    assert done.peak is not None
    assert done.peak.anonymous_bytes > 0
    assert done.peak.file_bytes > 0
    assert done.memory_samples >= 2


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ({"signal": signal.SIGILL, "stderr": "dying"}, "signal SIGILL: dying"),
        ({"status": 3, "stderr": "no such model"}, "status 3: no such model"),
        ({"stdout": ""}, "nothing printed"),
        ({"stdout": '{"tg8": 1.0}'}, "no figure for pp8"),
    ],
)
def test_a_bad_run_has_a_failure_and_no_figure(script: dict[str, Any], message: str) -> None:
    done = run(FakeArm(**script), ["pp8"], 60)
    assert done.reading is None
    assert done.failure is not None
    assert message in done.failure


def test_a_run_that_hangs_is_ended() -> None:
    done = run(FakeArm(stdout='{"pp8": 5.0}', sleep=600), ["pp8"], 0.5)
    assert done.reading is None
    assert done.failure == "not finished after 0.5 s"


def test_our_bench_is_read_with_its_proof() -> None:
    reading = ours().read(json.dumps(bench_tests()), "")
    assert reading.speeds == {
        "pp512": 100.0,
        "tg128": 20.0,
        "pp512@d512": 90.0,
        "tg128@d512": 18.0,
    }
    assert reading.proof == {
        "isa": "avx2",
        "kernels": {"linear_int4": "linear_int4_avx2"},
        "weights_bytes": 1000,
    }


def test_stored_command_names_no_path() -> None:
    assert ours().command[2] == "/somewhere/model"
    assert ours().shown_command[:3] == ["edge-infer", "bench", "model"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("isa", None),
        ("isa", ""),
        ("kernels", None),
        ("kernels", {}),
        ("weights_bytes", None),
        ("weights_bytes", 0),
    ],
)
def test_our_bench_without_proof_fails(field: str, value: object) -> None:
    tests = bench_tests()
    tests[1][field] = value
    with pytest.raises(ReadError, match=f"no path proof: {field}"):
        ours().read(json.dumps(tests), "")


def test_our_bench_must_stay_on_one_isa() -> None:
    tests = bench_tests()
    tests[2]["isa"] = "scalar"
    with pytest.raises(ReadError, match=r"different ISAs: \['avx2', 'scalar'\]"):
        ours().read(json.dumps(tests), "")


@pytest.mark.parametrize("text", ["", "Loading...", "{}", "[]"])
def test_our_bench_must_print_a_list(text: str) -> None:
    with pytest.raises(ReadError, match="edge-infer bench printed no"):
        ours().read(text, "")


@pytest.mark.parametrize("speed", [0, -1.0, float("inf"), float("nan"), "fast", None])
def test_speeds_must_be_positive_numbers(speed: object) -> None:
    with pytest.raises(ReadError, match="pp512: avg_ts"):
        read_speeds([{"n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": speed}])


def test_speeds_need_every_field_and_no_repeat() -> None:
    with pytest.raises(ReadError, match="n_depth"):
        read_speeds([{"n_prompt": 512, "n_gen": 0, "avg_ts": 1.0}])
    with pytest.raises(ReadError, match="tg128: reported twice"):
        read_speeds([bench_test(0, 128, 0, 1.0), bench_test(0, 128, 0, 2.0)])


@pytest.mark.parametrize(
    ("numbers", "label"),
    [((512, 0, 0), "pp512"), ((0, 128, 64), "tg128@d64"), ((8, 4, 0), "pp8+tg4")],
)
def test_labels_are_llama_bench_names(numbers: tuple[int, int, int], label: str) -> None:
    assert test_label(*numbers) == label
