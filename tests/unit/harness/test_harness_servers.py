"""The tools that start servers, against a made-up one: start, failure, comparison, idling."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from baselines.llama_cpp.serve import read_proof
from harness import compare_servers, idle_server
from harness.arm import ReadError
from harness.report_file import report_path, write_report
from harness.server_arms import Seats, read_status
from harness.server_process import ServerError, get, serving

FAKE = Path(__file__).with_name("fake_server.py")
SEATS = Seats(2, 256)


def executable(**faults: Any) -> list[str]:
    return [sys.executable, str(FAKE), json.dumps(faults)]


def command(port: int, **faults: Any) -> list[str]:
    return [*executable(**faults), "serve", "m", "--port", str(port)]


def test_a_server_answers_and_ends() -> None:
    with serving(command, "/ready", 20.0) as server:
        assert get(server.port, "/ready") == (200, "{}")
        assert server.ready_ms > 0
        assert server.pss().anonymous_bytes > 1 << 20
        assert server.stop() == 0
        assert not server.alive()


def test_a_server_that_ends_at_once_is_told_with_its_words() -> None:
    with (
        pytest.raises(ServerError, match="status 1 before ready: no such model"),
        serving(lambda port: command(port, fail_start=True), "/ready", 20.0),
    ):
        pass


def test_a_server_that_is_never_ready_is_ended() -> None:
    waiting = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(ServerError, match="in time"), serving(lambda _: waiting, "/ready", 0.3):
        pass


def compare(tmp_path: Path, *arguments: str, **faults: Any) -> tuple[int, dict[str, Any]]:
    ours = ["--model", "m", "--edge-infer", shlex.join(executable(**faults))]
    sizes = ["-p", "20", "--prefix", "30", "--tail", "5", "-n", "8"]
    status = compare_servers.main(["test", *ours, *sizes, "--results", str(tmp_path), *arguments])
    (path,) = tmp_path.glob("*/servers/test.json")
    return status, json.loads(path.read_text())


def test_a_comparison_has_every_load_of_every_pass(tmp_path: Path) -> None:
    log = tmp_path / "log"
    sizes = ["--streams", "1", "3", "--passes", "2"]
    status, report = compare(tmp_path / "results", *sizes, log=str(log))
    assert status == 0
    assert report["labels"] == ["distinct x1", "distinct x3", "shared x1", "shared x3"]
    figures = report["arms"]["edge-infer"]["figures"]
    assert all(len(figures[label]["output_tok_s"]["samples"]) == 2 for label in report["labels"])
    loads = [load for run in report["runs"] for load in run["loads"]]
    assert [len(load["requests"]) for load in loads] == [2, 2, 6, 6] * 2
    assert {request["tokens"] for load in loads for request in load["requests"]} == {8}
    assert report["arms"]["edge-infer"]["proof"]["isa"] == "avx2"
    commands = log.read_text().splitlines()
    assert len(commands) == 1 + 2 * 2  # the proof, then one server for each pass and size
    assert sum("--max-num-seqs 3" in line for line in commands) == 3


def test_an_arm_whose_streams_are_cut_off_has_a_failure_and_no_figures(tmp_path: Path) -> None:
    sizes = ["--streams", "2", "--passes", "3"]
    status, report = compare(tmp_path, *sizes, forget_done=True)
    assert status == 1
    assert "does not end with [DONE]" in report["arms"]["edge-infer"]["failure"]
    assert "figures" not in report["arms"]["edge-infer"]
    assert len(report["runs"]) == 1  # it is not started again


def test_an_idle_server_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(idle_server, "SETTLE_SECONDS", 0.0)
    ours = ["--model", "m", "--edge-infer", shlex.join(executable())]
    sizes = ["--starts", "2", "--seconds", "1"]
    status = idle_server.main(["test", *ours, *sizes, "--results", str(tmp_path)])
    (path,) = tmp_path.glob("*/servers/test.json")
    report = json.loads(path.read_text())
    assert len(report["ready_ms"]["samples"]) == 2
    assert set(report["idle"]) == {"fresh", "after chats"}
    idle = report["idle"]["fresh"]
    total = idle["anonymous_bytes"] + idle["file_bytes"] + idle["shared_bytes"]
    assert idle["beyond_bytes"] == total > 1 << 20  # it has neither weights nor a KV cache
    assert status == int(bool(report["missed_targets"]))
    assert "beyond weights and KV" in capsys.readouterr().out


def idle(beyond: int, cpu_share: float) -> idle_server.Idle:
    return idle_server.Idle(1.0, 0, 0, 0, 0, 0, beyond, 0, 0.0, cpu_share, 0.0, 0.0)


def test_missed_targets_are_told() -> None:
    states = {"fresh": idle(150_000_000, 0.009), "after chats": idle(150_600_000, 0.01)}
    assert idle_server.missed_targets(1500.0, states) == [
        "after chats: 151 MB beyond weights and KV, target 150",
        "after chats: 1.0% CPU, target below 1%",
    ]
    assert idle_server.missed_targets(1501.0, {}) == ["ready after 1501 ms, target 1500"]


def test_results_are_not_overwritten(tmp_path: Path) -> None:
    path = report_path(tmp_path, "a.b-1")
    write_report(path, {"a": 1})
    with pytest.raises(FileExistsError):
        report_path(tmp_path, "a.b-1")
    with pytest.raises(ValueError, match="letters, digits, dots and dashes"):
        report_path(tmp_path, "../a")


def test_a_status_without_proof_is_refused() -> None:
    status = {
        "runtime": {"isa": "amx", "threads": 2},
        "model": {"weights_formats": {"int4": 1}, "weights_bytes": 1},
        "kv_cache": {"total_bytes": 1},
    }
    assert read_status(json.dumps(status), 2)["isa"] == "amx"
    with pytest.raises(ReadError, match="threads is 2, asked for 4"):
        read_status(json.dumps(status), 4)
    with pytest.raises(ReadError, match="KeyError"):
        read_status("{}", 2)


LLAMA_LOG = """system_info: n_threads = 2 | AVX2 = 1
load_tensors:   CPU_REPACK model buffer size =    95.34 MiB
llama_context: n_ctx_seq     = 256
llama_context: flash_attn    = enabled
llama_kv_cache: size =   20.00 MiB (  256 cells)
"""


def test_the_proof_of_llama_server_is_read() -> None:
    proof = read_proof(LLAMA_LOG, True, SEATS)
    assert proof["model_buffers_mib"] == {"CPU_REPACK": 95.34}
    assert proof["flash_attn"] == "enabled"


@pytest.mark.parametrize(
    ("log", "flash", "message"),
    [
        (LLAMA_LOG, False, "flash_attn is enabled, asked for disabled"),
        (LLAMA_LOG.replace("256", "128"), True, "a slot has 128 tokens, not 256"),
        (LLAMA_LOG.replace("system_info", "info"), True, "lacks system_info"),
        (LLAMA_LOG.replace("model buffer", "buffer"), True, "model buffers"),
    ],
)
def test_a_log_that_proves_nothing_is_refused(log: str, flash: bool, message: str) -> None:
    with pytest.raises(ReadError, match=message):
        read_proof(log, flash, SEATS)
