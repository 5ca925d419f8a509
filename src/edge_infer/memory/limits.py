"""How much memory this process may use: cgroups first, then the machine, then what was asked for.

Page cache of the cgroup is reclaimable and counts as available (a limit minus plain usage refuses
models that fit). Swap is never counted: a model that swaps is worse than one that is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from edge_infer.cgroups import CgroupFolder, cgroup_folders, parse_int, read_limit, read_text

# Kept free of every limit that is not explicit: page tables, socket buffers and kernel stacks
# are charged to the same limit, and the kernel reclaims painfully close to zero.
RESERVE_BYTES = 64 << 20

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgt])(i?b|i)?|b)?", re.IGNORECASE)


@dataclass(frozen=True)
class MemoryLimit:
    """What this process may plan for.

    Attributes:
        bytes: the limit that leaves least, as it is set.
        source: the file or setting it comes from.
        available_bytes: what is left under it, after RESERVE_BYTES unless it is explicit.
        details: every limit that was found, a line each.
    """

    bytes: int
    source: str
    available_bytes: int
    details: tuple[str, ...]


def parse_bytes(value: str | int) -> int:
    """A size in bytes from an integer or from text such as `512M`, `2GiB` or `1500MB`.

    K, M, G, T (also Ki, KiB, ...) are powers of 1024; KB, MB, GB, TB are powers of 1000.
    Raises ValueError, naming the value, for anything else and for sizes below 1 byte.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"a size must be an integer or text such as 512M, not {value!r}")
    if isinstance(value, int):
        size = value
    else:
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"a size must be like 512M, 2GiB or 1500MB, not {value!r}")
        number, unit, suffix = match[1], (match[2] or "").lower(), (match[3] or "").lower()
        base = 1000 if suffix == "b" else 1024
        scale = base ** ("kmgt".index(unit) + 1) if unit else 1
        size = int(float(number) * scale) if "." in number else int(number) * scale
    if size < 1:
        raise ValueError(f"a size must be at least 1 byte, not {value!r}")
    return size


def memory_limit(root: Path = Path("/"), explicit: int | None = None) -> MemoryLimit:
    """The limit that leaves this process least.

    Counted are every cgroup from this process's own up to the root, the machine's MemAvailable
    and `explicit` bytes. Raises ValueError when `explicit` is not positive or nothing is known.
    """
    found: list[MemoryLimit] = []
    for folder in cgroup_folders("memory", root):
        limit = _cgroup_limit(folder)
        if limit is not None:
            found.append(limit)
    machine = _machine_limit(root)
    if machine is not None:
        found.append(machine)
    if explicit is not None:
        if explicit < 1:
            raise ValueError(f"the memory limit must be at least 1 byte, not {explicit}")
        line = f"explicit: {_mib(explicit)}"
        found.append(MemoryLimit(explicit, "explicit", explicit, (line,)))
    if not found:
        raise ValueError(f"{root / 'proc/meminfo'} has no MemAvailable, and no cgroup has a limit")
    least = min(found, key=lambda limit: limit.available_bytes)
    details = tuple(line for limit in found for line in limit.details)
    return MemoryLimit(least.bytes, least.source, least.available_bytes, details)


def _cgroup_limit(folder: CgroupFolder) -> MemoryLimit | None:
    """The limit of one cgroup; None when it sets none."""
    if folder.version == 2:
        # Above memory.high the kernel throttles the process to a crawl, so it binds too.
        names, usage_name, prefix = ["memory.max", "memory.high"], "memory.current", ""
    else:
        names, usage_name, prefix = ["memory.limit_in_bytes"], "memory.usage_in_bytes", "total_"
    limits = [(limit, name) for name in names if (limit := read_limit(folder.path / name))]
    if not limits:
        return None
    limit, name = min(limits)
    usage = read_limit(folder.path / usage_name)
    if usage is None:
        raise ValueError(f"{folder.path / usage_name} cannot be read, so nothing says what is used")
    stat = _read_table(folder.path / "memory.stat", " ")
    cache = stat.get(f"{prefix}inactive_file", 0) + stat.get(f"{prefix}active_file", 0)
    used = max(usage - cache, 0)
    available = max(limit - used - RESERVE_BYTES, 0)
    source = str(folder.path / name)
    line = (
        f"cgroup v{folder.version} {source}: {_mib(limit)}, in use {_mib(used)} "
        f"and {_mib(min(cache, usage))} of page cache, available {_mib(available)}"
    )
    return MemoryLimit(limit, source, available, (line,))


def _machine_limit(root: Path) -> MemoryLimit | None:
    table = _read_table(root / "proc/meminfo", ":")
    if "MemAvailable" not in table:
        return None
    total, free = table.get("MemTotal", 0) * 1024, table["MemAvailable"] * 1024
    available = max(free - RESERVE_BYTES, 0)
    line = f"MemAvailable: {_mib(free)} of {_mib(total)}, available {_mib(available)}"
    return MemoryLimit(total, "MemAvailable", available, (line,))


def _read_table(path: Path, separator: str) -> dict[str, int]:
    """Lines of `name<separator>integer [unit]`."""
    table: dict[str, int] = {}
    for line in (read_text(path) or "").splitlines():
        name, found, rest = line.partition(separator)
        if found and rest.split():
            table[name] = parse_int(path, rest.split()[0])
    return table


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
