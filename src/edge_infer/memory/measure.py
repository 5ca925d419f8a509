"""Memory in use, in bytes of PSS: a page shared by n processes counts 1/n in each.

Source: Linux Documentation/filesystems/proc.rst and admin-guide/mm/pagemap.rst. The split by kind
needs Linux 5.9; all of it needs CONFIG_PROC_PAGE_MONITOR, and is an OSError where that is off.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

_PROC = Path("/proc")
_KIB = 1024
# 00400000-0048a000 r--p 00000000 fd:03 960637     /bin/bash
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+)")


@dataclass(frozen=True)
class MemorySample:
    """PSS of a process tree, in bytes.

    Attributes:
        pss: all of it; anonymous, file and shmem are its parts.
        uss: pages that no other process maps.
    """

    pss: int = 0
    anonymous: int = 0
    file: int = 0
    shmem: int = 0
    uss: int = 0

    def __add__(self, other: MemorySample) -> MemorySample:
        return MemorySample(
            self.pss + other.pss,
            self.anonymous + other.anonymous,
            self.file + other.file,
            self.shmem + other.shmem,
            self.uss + other.uss,
        )


def process_tree(pid: int) -> list[int]:
    """`pid` and its living descendants."""
    found = [pid]
    for parent in found:
        found.extend(_children(parent))
    return found


def process_tree_memory(pid: int | None = None) -> MemorySample:
    """What a process (this one by default) and its descendants hold.

    Descendants that end meanwhile count as nothing. Raises OSError when `pid` cannot be read.
    """
    root = os.getpid() if pid is None else pid
    total = _process_memory(root)
    for member in process_tree(root)[1:]:
        try:
            total += _process_memory(member)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def mapping_memory(path: str | os.PathLike[str]) -> int:
    """PSS, in bytes, of this process's mappings of one file (its pages touched so far)."""
    status = os.stat(path)
    wanted = (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
    return sum(pss for _, _, file, pss in _mappings() if file == wanted)


def address_memory(address: int, nbytes: int) -> int:
    """Resident bytes of this process's pages that hold `nbytes` from `address`.

    Read page by page, since the kernel joins and splits neighbouring anonymous mappings.
    Raises ValueError when nothing can be mapped there.
    """
    page = mmap.PAGESIZE
    first, last = address // page, (address + nbytes - 1) // page
    flags = 7 if sys.byteorder == "little" else 0  # the byte of an entry with its highest bit
    present = 0
    with (_PROC / "self/pagemap").open("rb", buffering=0) as file:
        file.seek(first * 8)
        left = (last - first + 1) * 8
        while left:
            block = file.read(min(left, 1 << 20))
            if not block:
                raise ValueError(f"nothing can be mapped at address {address:#x}")
            left -= len(block)
            present += sum(byte >> 7 for byte in block[flags::8])
    return present * page


class PeakSampler:
    """Watches the memory of a process tree from a thread while a `with` block runs.

    Every tick reads the kernel's counters of anonymous memory (about 0.03 ms). The full reading
    walks page tables (about 6 ms for each GB that is mapped), so it follows at once only while all
    readings together stay under `OVERHEAD` of one core, and always at the end and in `sample()`.

    Attributes:
        peak_anonymous: largest anonymous memory seen, bytes.
        peak_total: largest PSS seen, bytes; between two full readings the file-backed part is
            taken as unchanged.
        peak: the full reading with the largest PSS.
        overhead_seconds: CPU time of all readings.
    """

    OVERHEAD = 0.01

    def __init__(self, pid: int | None = None, interval_seconds: float = 0.05) -> None:
        self.pid = os.getpid() if pid is None else pid
        self.interval_seconds = interval_seconds
        self.peak_anonymous = 0
        self.peak_total = 0
        self.peak = MemorySample()
        self.overhead_seconds = 0.0
        self.readings = 0
        self._last = MemorySample()
        self._started = 0.0
        self._full_seconds = 0.0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-peak", daemon=True)

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self.sample()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may have ended
            self.sample()

    def sample(self) -> MemorySample:
        """Take a full reading now. Raises OSError when the process is gone."""
        with self._lock:
            began = time.thread_time()
            self._last = process_tree_memory(self.pid)
            self.readings += 1
            self.peak_anonymous = max(self.peak_anonymous, self._last.anonymous)
            self.peak_total = max(self.peak_total, self._last.pss)
            if self._last.pss > self.peak.pss:
                self.peak = self._last
            spent = time.thread_time() - began
            self._full_seconds = spent
            self.overhead_seconds += spent
            return self._last

    def _tick(self) -> None:
        """Read the cheap counters, then the full ones when the time spent so far allows it."""
        with self._lock:
            began = time.thread_time()
            anonymous = _tree_anonymous(self.pid)
            self.peak_anonymous = max(self.peak_anonymous, anonymous)
            self.peak_total = max(self.peak_total, anonymous + self._last.file + self._last.shmem)
            self.overhead_seconds += time.thread_time() - began
            elapsed = time.monotonic() - self._started
            affordable = self.overhead_seconds + self._full_seconds <= self.OVERHEAD * elapsed
        if affordable:
            self.sample()

    def _watch(self) -> None:
        while not self._stop.wait(self.interval_seconds):
            try:
                self._tick()
            except (FileNotFoundError, ProcessLookupError):
                return  # the watched process ended


def _children(pid: int) -> list[int]:
    """Living children; none for a process that has just ended."""
    try:
        lists = [(task / "children").read_text() for task in (_PROC / f"{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for text in lists for child in text.split()]


def _process_memory(pid: int) -> MemorySample:
    fields = _fields(_PROC / f"{pid}/smaps_rollup")
    missing = [name for name in ("Pss_Anon", "Pss_File", "Pss_Shmem") if name not in fields]
    if not fields:
        return MemorySample()  # a process that has exited but was not waited for
    if missing:
        raise OSError(f"/proc/{pid}/smaps_rollup has no {missing[0]}: Linux 5.9 or later is needed")
    return MemorySample(
        fields["Pss"],
        fields["Pss_Anon"],
        fields["Pss_File"],
        fields["Pss_Shmem"],
        fields["Private_Clean"] + fields["Private_Dirty"],
    )


def _tree_anonymous(pid: int) -> int:
    total = 0
    for member in process_tree(pid):
        try:
            total += _fields(_PROC / f"{member}/status").get("RssAnon", 0)
        except (FileNotFoundError, ProcessLookupError):
            if member == pid:
                raise
    return total


def _fields(path: Path) -> dict[str, int]:
    """The `Name: 123 kB` lines of a proc file, in bytes."""
    try:
        text = path.read_text()
    except PermissionError as error:
        raise OSError(f"{path} cannot be read: {error.strerror}") from error
    table = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            table[name] = int(rest[:-3]) * _KIB
    return table


def _mappings() -> Iterator[tuple[int, int, tuple[int, int, int], int]]:
    """Start, end, (major, minor, inode) and PSS of this process's mappings."""
    current: tuple[int, int, tuple[int, int, int]] | None = None
    with (_PROC / "self/smaps").open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("Pss:") and current is not None:
                yield *current, int(line.split()[1]) * _KIB
                current = None
            elif match := _MAPPING.match(line):
                start, end, major, minor = (int(match[i], 16) for i in range(1, 5))
                current = (start, end, (major, minor, int(match[5])))
