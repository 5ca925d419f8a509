"""PSS parsing, and a real process tree whose memory is known."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness.memory import PeakPss, Pss, parse_smaps_rollup, process_tree, tree_pss

MIB = 2**20
ROLLUP = """55d0-7ffe ---p 00000000 00:00 0    [rollup]
Rss:                9000 kB
Pss:                6000 kB
Pss_Anon:           4000 kB
Pss_File:           1500 kB
Pss_Shmem:           500 kB
"""

# Allocates and touches argv[1] MiB of anonymous memory and maps the file argv[2]; with a third
# argument it starts one such child. Prints a line when all is touched; ends with its input.
PROGRAM = """
import mmap, subprocess, sys
mib, path = int(sys.argv[1]), sys.argv[2]
block = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE)
for page in range(0, mib << 20, 4096): block[page] = 1
with open(path, 'rb') as file: view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
touched = sum(view[page] for page in range(0, len(view), 4096))
child = None
if len(sys.argv) > 3:
    child = subprocess.Popen([sys.executable, '-c', sys.argv[3], str(mib), path],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
print('ready', flush=True)
sys.stdin.read()
if child: child.communicate()
"""


def test_rollup_is_split_in_bytes() -> None:
    pss = parse_smaps_rollup(ROLLUP)
    assert pss == Pss(4000 * 1024, 1500 * 1024, 500 * 1024)
    assert pss.total_bytes == 6000 * 1024


def test_rollup_without_the_split_is_refused() -> None:
    with pytest.raises(ValueError, match="Pss_File"):
        parse_smaps_rollup(ROLLUP.replace("Pss_File", "Other"))


def test_tree_walk_follows_every_thread_and_survives_ended_processes(tmp_path: Path) -> None:
    for path, children in [("1/task/1", "2 3 "), ("1/task/9", "4 "), ("3/task/3", "5 ")]:
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "children").write_text(children)
    assert sorted(process_tree(1, tmp_path)) == [1, 2, 3, 4, 5]
    (tmp_path / "4").mkdir()
    (tmp_path / "4" / "smaps_rollup").write_text(ROLLUP)
    assert tree_pss(1, tmp_path) == parse_smaps_rollup(ROLLUP)


def test_peak_keeps_the_split_of_the_largest_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([Pss(1, 1, 0), Pss(5, 2, 0), Pss(2, 4, 0)])
    monkeypatch.setattr("harness.memory.tree_pss", lambda _: next(readings))
    peak = PeakPss(1)
    for _ in range(3):
        peak.sample()
    assert peak.peak == Pss(5, 2, 0)
    assert peak.samples == 3


def test_a_real_tree_counts_private_memory_twice_and_a_shared_file_once(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(b"\1" * (16 * MIB))
    command = [sys.executable, "-c", PROGRAM, "24", str(path)]

    def measure(extra: list[str]) -> Pss:
        with subprocess.Popen(
            [*command, *extra], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            pss = tree_pss(process.pid)
            process.communicate()
        return pss

    one, two = measure([]), measure([PROGRAM])
    assert one.anonymous_bytes >= 24 * MIB
    assert one.file_bytes >= 16 * MIB
    assert two.anonymous_bytes - one.anonymous_bytes >= 24 * MIB
    # The file's 16 MiB are shared by both processes, so the sum hardly grows.
    assert two.file_bytes - one.file_bytes < 8 * MIB
