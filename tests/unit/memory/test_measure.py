import ctypes
import gc
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from edge_infer.memory.measure import (
    PeakSampler,
    address_memory,
    mapping_memory,
    process_tree,
    process_tree_memory,
)

MIB = 1 << 20
PAGE = mmap.PAGESIZE

CHILD = "import sys; data = bytearray(b'x') * (40 << 20); print('up', flush=True); sys.stdin.read()"


def test_agrees_with_psutil() -> None:
    ours = process_tree_memory()
    this = psutil.Process()
    family = [member.memory_full_info() for member in (this, *this.children(recursive=True))]
    assert ours.pss == pytest.approx(sum(member.pss for member in family), rel=0.05)
    assert ours.uss == pytest.approx(sum(member.uss for member in family), rel=0.05)
    # The kernel rounds each part to KiB.
    parts = ours.anonymous + ours.file + ours.shmem
    assert ours.pss == pytest.approx(parts, abs=4096 * len(family))


def test_children_count() -> None:
    family = process_tree(os.getpid())
    alone = process_tree_memory()
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert set(process_tree(os.getpid())) == {*family, child.pid}
        both = process_tree_memory()
        child.communicate()
    assert both.anonymous - alone.anonymous > 40 * MIB
    assert process_tree(os.getpid()) == family


def test_a_missing_process_is_an_error() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(FileNotFoundError):
        process_tree_memory(child.pid)


def test_mapping_memory_counts_touched_pages_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(8 * MIB))
    (tmp_path / "link").symlink_to(path)
    assert mapping_memory(path) == 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        before = mapping_memory(path)
        total = sum(view[offset] for offset in range(0, len(view), PAGE))
        assert total > 0
        assert before < 8 * MIB
        assert mapping_memory(path) == 8 * MIB
        assert mapping_memory(tmp_path / "link") == 8 * MIB
    assert mapping_memory(path) == 0


def test_address_memory_counts_touched_pages_of_a_range() -> None:
    with mmap.mmap(-1, 16 * PAGE) as region:
        view = (ctypes.c_char * len(region)).from_buffer(region)
        address = ctypes.addressof(view)
        assert address_memory(address, 16 * PAGE) == 0
        for page in (0, 3, 4):
            region[page * PAGE] = 1
        assert address_memory(address, 16 * PAGE) == 3 * PAGE
        assert address_memory(address + 3 * PAGE, 1) == PAGE
        assert address_memory(address + 3 * PAGE - 1, 2) == PAGE  # pages 2 and 3
        del view


def test_peak_outlives_what_caused_it() -> None:
    gc.collect()
    before = process_tree_memory()
    with PeakSampler(interval_seconds=0.01) as peak:
        # A mapping of its own: the allocator could give memory that is resident already.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        with mmap.mmap(-1, 64 * MIB, flags=flags) as data:
            for offset in range(0, len(data), PAGE):
                data[offset] = 1
            # Half of it, as what other tests left in this process tree may go away meanwhile.
            _wait_for(lambda: peak.peak_anonymous > before.anonymous + 32 * MIB)
    after = process_tree_memory()
    assert after.anonymous < before.anonymous + 16 * MIB
    assert peak.peak_total > before.pss + 32 * MIB
    assert peak.peak_total >= peak.peak.pss
    assert peak.overhead_seconds > 0


def test_full_readings_stay_within_their_share() -> None:
    with PeakSampler(interval_seconds=0.001) as peak:
        peak.OVERHEAD = 0.0
        started = peak.readings
        ticks = peak.overhead_seconds
        _wait_for(lambda: peak.overhead_seconds > ticks)
        assert peak.readings <= started + 1  # one may have begun before the share was taken away
        assert peak.sample().pss > 0


def test_peak_of_a_process_that_ends() -> None:
    with (
        subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE) as child,
        PeakSampler(child.pid, interval_seconds=0.01) as peak,
    ):
        _wait_for(lambda: peak.peak_anonymous > 40 * MIB)
        child.communicate()
    assert peak.peak_total > 40 * MIB


def _wait_for(condition: object, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.005)
