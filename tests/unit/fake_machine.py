"""A machine laid out in a folder: sysfs topology, cgroup trees and meminfo."""

from __future__ import annotations

from pathlib import Path


class FakeMachine:
    """Writes kernel files below `root`; every method can be called again to change its part."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")

    def cpus(
        self,
        cores: list[list[int]],
        *,
        capacity: dict[int, int] | None = None,
        max_khz: dict[int, int] | None = None,
    ) -> None:
        """`cores` lists the CPU numbers of each physical core."""
        numbers = sorted(cpu for core in cores for cpu in core)
        self.write("sys/devices/system/cpu/online", ",".join(map(str, numbers)))
        for core in cores:
            for cpu in core:
                base = f"sys/devices/system/cpu/cpu{cpu}"
                siblings = ",".join(map(str, core))
                self.write(f"{base}/topology/thread_siblings_list", siblings)
                self.write(f"{base}/topology/physical_package_id", "0")
                if capacity:
                    self.write(f"{base}/cpu_capacity", str(capacity[cpu]))
                if max_khz:
                    self.write(f"{base}/cpufreq/cpuinfo_max_freq", str(max_khz[cpu]))

    def cgroup_v2(self, path: str, *, mounted: str = "/", point: str = "/sys/fs/cgroup") -> None:
        """Put this process into the v2 cgroup `path`; `mounted` appears at `point`."""
        self.write("proc/self/cgroup", f"0::{path}")
        self.write(
            "proc/self/mountinfo",
            "22 1 0:20 / /proc rw - proc proc rw\n"
            f"30 22 0:26 {mounted} {point} rw,nosuid shared:4 - cgroup2 cgroup rw",
        )

    def cgroup_v1(self, paths: dict[str, str], *, mounted: str = "/") -> None:
        """Put this process into a v1 cgroup for each controller (or comma-joined ones)."""
        lines = [f"{i}:{names}:{path}" for i, (names, path) in enumerate(paths.items(), 1)]
        self.write("proc/self/cgroup", "\n".join(lines))
        mounts = [
            f"3{i} 22 0:2{i} {mounted} /sys/fs/cgroup/{names} rw - cgroup cgroup rw,{names}"
            for i, names in enumerate(paths)
        ]
        self.write("proc/self/mountinfo", "\n".join(mounts))

    def meminfo(self, *, total_mib: int, available_mib: int) -> None:
        self.write(
            "proc/meminfo",
            f"MemTotal:       {total_mib * 1024} kB\nMemFree:  1024 kB\n"
            f"MemAvailable:   {available_mib * 1024} kB\nHugePages_Total:       0",
        )
