"""The memory mappings of a process, each with its share of the PSS.

Source: Linux Documentation/filesystems/proc.rst, `smaps`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.memory import KIB, PROC

# 00400000-0048a000 r--p 00000000 fd:03 960637     /bin/bash
HEADER = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+ *(.*)")
# glibc's arenas, too, are anonymous mappings without reserve, of at most this size.
ARENA_BYTES = 64 << 20


@dataclass(frozen=True)
class Mapping:
    """One mapping; sizes in bytes.

    Attributes:
        rss_bytes: in memory, where PSS counts a page shared by n processes as 1/n.
        path: of the file, "" for anonymous memory, or a name such as "[heap]".
        flags: two-letter names of smaps' VmFlags, "nr" for memory without reserve.
    """

    path: str
    permissions: str
    size_bytes: int
    rss_bytes: int
    pss_bytes: int
    flags: frozenset[str]


def parse_smaps(text: str) -> list[Mapping]:
    """Return the mappings in the text of a `smaps` file.

    Raises:
        ValueError: if one lacks RSS, PSS or flags.
    """
    mappings: list[Mapping] = []
    header: re.Match[str] | None = None
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        if match := HEADER.fullmatch(line):
            if header is not None:
                raise ValueError(f"smaps has no VmFlags for {header.group(0)}")
            header, sizes = match, {}
        elif line.startswith(("Rss:", "Pss:")):
            sizes[line[:3]] = int(line.split()[1]) * KIB
        elif line.startswith("VmFlags:") and header is not None:
            if len(sizes) != 2:
                raise ValueError(f"smaps has not both Rss and Pss for {header.group(0)}")
            start, end, permissions, path = header.groups()
            size = int(end, 16) - int(start, 16)
            flags = frozenset(line.split()[1:])
            mappings.append(
                Mapping(path.strip(), permissions, size, sizes["Rss"], sizes["Pss"], flags)
            )
            header = None
    return mappings


def mappings_of(pid: int, proc: Path = PROC) -> list[Mapping]:
    """Return the mappings of one process; OSError if it is gone."""
    return parse_smaps((proc / str(pid) / "smaps").read_text(errors="replace"))


def is_weights(mapping: Mapping) -> bool:
    """Whether it is a mapped weight file."""
    return mapping.path.endswith((".safetensors", ".gguf"))


def is_kv(mapping: Mapping) -> bool:
    """Whether it is our KV cache: anonymous memory without reserve, touched as it is used.

    A cache that is no larger than an arena of malloc cannot be told from one and is not found.
    """
    return (
        not mapping.path
        and mapping.permissions.startswith("rw")
        and "nr" in mapping.flags
        and mapping.size_bytes > ARENA_BYTES
    )


def weights_pss_bytes(mappings: Iterable[Mapping]) -> int:
    """Return the PSS of mapped weight files."""
    return sum(mapping.pss_bytes for mapping in mappings if is_weights(mapping))


def kv_pss_bytes(mappings: Iterable[Mapping]) -> int:
    """Return the PSS of the KV cache."""
    return sum(mapping.pss_bytes for mapping in mappings if is_kv(mapping))
