"""Machine description and load, from texts as kernels print them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from harness.machine import (
    Machine,
    best_isa,
    describe,
    git_state,
    load_now,
    others_share,
    parse_cpuinfo,
    parse_load,
    steal_share,
)

X86 = """processor\t: 0
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz
stepping\t: 8
flags\t\t: fpu smep avx2 avx512_vnni amx_tile amx_int8 avx_vnni fma

processor\t: 1
model name\t: another
"""
ARM = """processor\t: 0
BogoMIPS\t: 2000.00
Features\t: fp asimd asimddp i8mm sve
CPU implementer\t: 0x41
CPU part\t: 0xd4f
"""


def machine(**changes: object) -> Machine:
    fields: dict[str, object] = {
        "architecture": "x86_64",
        "cpu": "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
        "family": "6",
        "model": "143",
        "stepping": "8",
        "cores": 2,
        "memory_bytes": 1,
        "isa_flags": [],
        "best_isa": "amx",
        "kernel": "6.1",
        "transparent_hugepages": "madvise",
    }
    return Machine(**{**fields, **changes})  # type: ignore[arg-type]


def test_x86_cpuinfo_takes_the_first_cpu_and_only_isa_flags() -> None:
    cpu, family, model, stepping, flags = parse_cpuinfo(X86)
    assert (family, model, stepping) == ("6", "143", "8")
    assert cpu.startswith("Intel(R) Xeon(R) Platinum")
    assert flags == ["amx_int8", "amx_tile", "avx2", "avx512_vnni", "avx_vnni", "fma"]
    assert best_isa(flags) == "amx"


def test_arm_cpuinfo_is_named_by_implementer_and_part() -> None:
    cpu, family, _, _, flags = parse_cpuinfo(ARM)
    assert (cpu, family) == ("arm 0x41 0xd4f", "")
    assert best_isa(flags) == "i8mm"


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        (["amx_tile"], "base"),
        (["avx2", "avx512_vnni"], "avx512vnni"),
        (["avx2", "avx_vnni"], "avxvnni"),
        (["avx2"], "avx2"),
        (["asimddp"], "dotprod"),
        ([], "base"),
    ],
)
def test_best_isa_needs_every_flag_of_a_level(flags: list[str], level: str) -> None:
    assert best_isa(flags) == level


def test_slug_is_a_plain_folder_name() -> None:
    assert machine().slug == "intel-xeon-platinum-8481c-f6m143-2c-amx"
    arm = machine(cpu="arm 0x41 0xd4f", family="", architecture="aarch64", best_isa="i8mm")
    assert arm.slug == "arm-0x41-0xd4f-aarch64-2c-i8mm"


def test_description_names_no_host() -> None:
    here = describe()
    assert here.cores >= 1
    assert os.uname().nodename not in repr(here)


def test_load_and_shares() -> None:
    before = parse_load("cpu  100 0 50 800 50 0 0 10 5 0\ncpu0 1 1", "0.50 0.4 0.3 1/100 999")
    after = parse_load("cpu  250 0 50 820 60 0 0 30 5 0\ncpu0 1 1", "1.50 0.4 0.3 1/100 999")
    assert (before.total_ticks, before.steal_ticks, before.idle_ticks) == (1010, 10, 850)
    assert after.loadavg_1m == 1.5
    # 200 ticks passed: 150 busy, 30 idle or waiting, 20 stolen.
    assert steal_share(before, after) == pytest.approx(0.1)
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    assert others_share(before, after, 0.0) == pytest.approx(150 / 200)
    assert others_share(before, after, 140 / ticks_per_second) == pytest.approx(10 / 200)
    assert others_share(before, after, 1e6) == 0.0
    assert steal_share(before, before) == others_share(before, before, 0.0) == 0.0


def test_load_now_moves_forward() -> None:
    first = load_now()
    assert load_now().total_ticks >= first.total_ticks > 0


def test_git_state(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True
        )

    git("init", "-q")
    assert git_state(tmp_path) == ("none", True)
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    commit, changed = git_state(tmp_path)
    assert len(commit) == 40
    assert not changed
    (tmp_path / "file").write_text("two")
    assert git_state(tmp_path) == (commit, True)
