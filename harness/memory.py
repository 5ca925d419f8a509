"""Peak memory of a process tree as PSS, split into anonymous and file-backed pages.

PSS (proportional set size) counts a page shared by n processes as 1/n in each, so the sum over a
tree counts every page once. Source: Linux Documentation/filesystems/proc.rst, `smaps_rollup`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
KIB = 1024


@dataclass(frozen=True)
class Pss:
    """Proportional set size in bytes. `shared_bytes` is shmem (tmpfs and shared anonymous)."""

    anonymous_bytes: int = 0
    file_bytes: int = 0
    shared_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All three parts together."""
        return self.anonymous_bytes + self.file_bytes + self.shared_bytes

    def __add__(self, other: Pss) -> Pss:
        return Pss(
            self.anonymous_bytes + other.anonymous_bytes,
            self.file_bytes + other.file_bytes,
            self.shared_bytes + other.shared_bytes,
        )


def parse_smaps_rollup(text: str) -> Pss:
    """Return the PSS parts of one process's `smaps_rollup` text.

    Raises:
        ValueError: if a part is missing (kernels before 5.9 do not report the split).
    """
    fields = dict(line.split(":", 1) for line in text.splitlines()[1:] if ":" in line)
    parts = []
    for name in ("Pss_Anon", "Pss_File", "Pss_Shmem"):
        if name not in fields:
            raise ValueError(f"smaps_rollup has no {name}")
        parts.append(int(fields[name].split()[0]) * KIB)
    return Pss(*parts)


def process_tree(pid: int, proc: Path = PROC) -> list[int]:
    """Return `pid` and its living descendants; a process that just ended has no children."""
    found = [pid]
    for parent in found:
        try:
            lists = [path.read_text() for path in proc.glob(f"{parent}/task/*/children")]
        except (FileNotFoundError, ProcessLookupError):
            continue
        found.extend(int(child) for text in lists for child in text.split())
    return found


def tree_pss(pid: int, proc: Path = PROC) -> Pss:
    """Return the summed PSS of a process tree; processes that end meanwhile count as nothing."""
    total = Pss()
    for member in process_tree(pid, proc):
        try:
            text = (proc / str(member) / "smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if text:
            total += parse_smaps_rollup(text)
    return total


class PeakPss:
    """Keeps the largest total of a process tree, with the split at that moment."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.peak = Pss()
        self.samples = 0

    def sample(self) -> None:
        """Read the tree once and keep the reading if it is the largest so far."""
        current = tree_pss(self._pid)
        self.samples += 1
        if current.total_bytes > self.peak.total_bytes:
            self.peak = current
