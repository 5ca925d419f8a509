"""An illegal instruction must be impossible: what the native objects may contain."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "build/native-tests/CMakeFiles/edge_infer_core.dir/native"
ISA_UNITS = ("avx2", "avx512vnni", "avx512bf16", "amx")


def objects() -> list[Path]:
    found = sorted(BUILD.rglob("*.o"))
    if not found:
        pytest.skip("no native objects: tests/run.sh builds them first")
    return found


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} (binutils) is not installed")
    return path


def is_isa_unit(path: Path) -> bool:
    return path.name.partition(".")[0] in ISA_UNITS


def test_isa_units_export_no_weak_symbol() -> None:
    # The linker keeps one copy of a weak symbol: an inline function compiled with AVX-512
    # could become the one an AVX2 machine calls.
    nm = tool("nm")
    units = [path for path in objects() if is_isa_unit(path)]
    if not units:
        pytest.skip("this architecture has no ISA units")
    for path in units:
        symbols = subprocess.run([nm, path], capture_output=True, text=True, check=True).stdout
        weak = [line for line in symbols.splitlines() if re.search(r" [WVu] ", line)]
        assert not weak, f"{path.name} exports weak symbols: {weak}"


def test_common_units_hold_no_wide_instruction() -> None:
    objdump = tool("objdump")
    for path in objects():
        if is_isa_unit(path):
            continue
        done = subprocess.run([objdump, "-d", path], capture_output=True, text=True, check=True)
        wide = re.findall(r".*%(?:ymm|zmm|tmm)\d+.*", done.stdout)
        assert not wide, f"{path.name}: {wide[0]}"


def test_nothing_is_built_for_the_building_machine() -> None:
    root = Path(__file__).parents[2]
    for path in [root / "CMakeLists.txt", root / "pyproject.toml", root / "Makefile"]:
        assert "march=native" not in path.read_text(), path.name
