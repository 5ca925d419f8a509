"""Mappings of a process, and which of them are weights or the KV cache."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
from harness.mappings import Mapping, kv_pss_bytes, mappings_of, parse_smaps, weights_pss_bytes

MIB = 2**20
MAP_NORESERVE = 0x4000  # asm-generic/mman.h; Python 3.13 has it
SMAPS = """7f00-8f00 rw-p 00000000 00:00 0
Size:                  4 kB
Rss:                   4 kB
Pss:                   3 kB
Pss_Dirty:             1 kB
VmFlags: rd wr mr nr
9f00-af00 r--s 00000000 fd:03 960637     /models/a b.safetensors
Rss:                   2 kB
Pss:                   1 kB
VmFlags: rd mr
"""


def test_mappings_have_their_sizes_and_flags() -> None:
    memory, weights = parse_smaps(SMAPS)
    assert memory == Mapping("", "rw-p", 0x1000, 4096, 3072, frozenset({"rd", "wr", "mr", "nr"}))
    assert (weights.path, weights.rss_bytes, weights.pss_bytes) == (
        "/models/a b.safetensors",
        2048,
        1024,
    )
    assert weights_pss_bytes([memory, weights]) == 1024


@pytest.mark.parametrize("line", ["Pss:                   3 kB\n", "Rss:                   4 kB\n"])
def test_a_mapping_without_a_size_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not both"):
        parse_smaps(SMAPS.replace(line, ""))


def test_a_mapping_without_flags_is_refused() -> None:
    with pytest.raises(ValueError, match="no VmFlags"):
        parse_smaps(SMAPS.replace("VmFlags: rd wr mr nr\n", ""))


def test_only_large_memory_without_reserve_is_the_cache() -> None:
    def mapping(path: str, permissions: str, size: int, *flags: str) -> Mapping:
        return Mapping(path, permissions, size, 7, 7, frozenset(flags))

    cache = mapping("", "rw-p", 65 * MIB, "nr")
    others = [
        mapping("", "rw-p", 64 * MIB, "nr"),
        mapping("", "---p", 65 * MIB, "nr"),
        mapping("", "rw-p", 65 * MIB),
        mapping("[heap]", "rw-p", 65 * MIB, "nr"),
    ]
    assert kv_pss_bytes([cache, *others]) == 7


def test_this_process_has_what_it_touched(tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(bytes(3 * MIB))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    # Engines of other tests may still have weights and caches in this process.
    before = mappings_of(os.getpid())
    with mmap.mmap(-1, 256 * MIB, flags=flags) as cache, weights.open("rb") as file:
        for page in range(0, 2 * MIB, 4096):
            cache[page] = 1
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            assert sum(view[::4096]) == 0
            mine = mappings_of(os.getpid())
            weights_grew = weights_pss_bytes(mine) - weights_pss_bytes(before)
            assert weights_grew == pytest.approx(3 * MIB, rel=0.5)
            cache_grew = kv_pss_bytes(mine) - kv_pss_bytes(before)
            assert cache_grew == pytest.approx(2 * MIB, rel=0.1)
