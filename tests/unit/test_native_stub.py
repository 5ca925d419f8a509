"""The committed type stub of the native module is what the module says of itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import edge_infer


def test_the_stub_is_current(tmp_path: Path) -> None:
    fresh = tmp_path / "_native.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "edge_infer._native"]
    subprocess.run([*command, "-o", fresh], check=True)
    source = Path(__file__).parents[2] / "src/edge_infer/_native.pyi"
    assert fresh.read_text() == source.read_text(), "run `make stub`"
    assert edge_infer.__version__
