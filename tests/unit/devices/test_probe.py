import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_infer import _native
from edge_infer.devices import probe
from edge_infer.devices.probe import main, probe_isa

# Loaded by the child's interpreter before anything else.
FAKE_NATIVE = """
import os, signal, sys, time, types
def self_test(isa):
    assert "EDGE_INFER_ISA" not in os.environ
    {action}
    return {{"linear": "linear_int4_" + isa, "norm": "norm_" + isa}}
module = types.ModuleType("edge_infer._native")
module.self_test = self_test
sys.modules["edge_infer._native"] = module
"""


@pytest.fixture
def child_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def write(action: str) -> None:
        (tmp_path / "sitecustomize.py").write_text(FAKE_NATIVE.format(action=action))

    source = Path(probe.__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{source}")
    monkeypatch.setenv("EDGE_INFER_ISA", "scalar")
    return write


def test_a_path_that_works(child_does: Callable[[str], None]) -> None:
    child_does("pass")
    result = probe_isa("avx9")
    assert (result.ok, result.kernels, result.message) == (True, 2, "")


@pytest.mark.parametrize("name", ["SIGILL", "SIGSEGV"])
def test_a_signal_is_named(child_does: Callable[[str], None], name: str) -> None:
    child_does(f"os.kill(os.getpid(), signal.{name})")
    result = probe_isa("avx9")
    assert not result.ok
    assert result.message == f"killed by {name}"


def test_a_mismatch_names_the_kernel(child_does: Callable[[str], None]) -> None:
    child_does("raise RuntimeError('linear_int4_avx9 differs by 3.0')")
    assert probe_isa("avx9").message == "linear_int4_avx9 differs by 3.0"


def test_an_exit_without_a_result_is_no_success(child_does: Callable[[str], None]) -> None:
    child_does("os._exit(0)")
    result = probe_isa("avx9")
    assert not result.ok
    assert "exit code 0" in result.message


def test_a_child_that_hangs(
    child_does: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    child_does("time.sleep(60)")
    monkeypatch.setattr(probe, "PROBE_SECONDS", 1.0)
    assert "no result" in probe_isa("avx9").message


def test_the_real_paths_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    for isa in _native.available_isas():
        assert main([isa]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "OK"
    assert main(["avx9"]) == 1
    assert "avx9" in capsys.readouterr().err
    assert main([]) == 2
    assert probe_isa("scalar").ok, sys.executable
