"""Where this process stands in the cgroup trees (v1, v2, or both), for limits of CPU and memory.

Source: Linux Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/; proc_pid_mountinfo(5).
Every reader takes the root of the file system, so that tests can lay out a machine in a folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# A v1 limit that is not set reads as the largest multiple of the page size below 2**63.
_V1_UNLIMITED = 1 << 62


@dataclass(frozen=True)
class CgroupFolder:
    """One folder of a cgroup tree: this process's own or one of its ancestors."""

    version: int
    path: Path


@dataclass(frozen=True)
class _Mount:
    version: int
    controllers: frozenset[str]
    cgroup: PurePosixPath  # the cgroup that appears at `point`
    point: PurePosixPath


def cgroup_folders(controller: str, root: Path = Path("/")) -> list[CgroupFolder]:
    """The visible folders whose limits of `controller` bind this process, its own first.

    A limit of any ancestor binds as well, so callers take the smallest. Empty without cgroups.
    Inside a container, what lies above its own mount cannot be seen.
    """
    paths = _own_cgroups(root)
    folders: list[CgroupFolder] = []
    seen: set[tuple[int, frozenset[str]]] = set()
    for mount in _mounts(root):
        key = (mount.version, mount.controllers)
        if (mount.version == 1 and controller not in mount.controllers) or key in seen:
            continue
        own = paths.get(controller if mount.version == 1 else "")
        if own is None:
            continue
        seen.add(key)
        point = root / mount.point.relative_to("/")
        for part in _chain(own, mount.cgroup):
            if (point / part).is_dir():
                folders.append(CgroupFolder(mount.version, point / part))
    return folders


def read_limit(path: Path) -> int | None:
    """An integer file of a cgroup; None when it is absent or says that there is no limit.

    Raises ValueError, naming the file, for anything else.
    """
    text = read_text(path)
    if text is None or text == "max":
        return None
    value = parse_int(path, text)
    return None if value < 0 or value >= _V1_UNLIMITED else value


def read_text(path: Path) -> str | None:
    """The stripped text of a small kernel file, None when it is absent or cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # absent, or a controller file that this kernel refuses to read
        return None


def parse_int(path: Path, text: str) -> int:
    """`text` as an integer; ValueError names the file it came from."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{path}: expected an integer, found {text!r}") from None


def _own_cgroups(root: Path) -> dict[str, PurePosixPath]:
    """The cgroup of this process by v1 controller; the v2 one under the empty name."""
    paths: dict[str, PurePosixPath] = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            paths[name] = PurePosixPath(path)
    return paths


def _mounts(root: Path) -> list[_Mount]:
    mounts = []
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, filesystem = left.split(), right.split()
        if len(fields) < 6 or len(filesystem) < 3 or filesystem[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if filesystem[0] == "cgroup2" else 1
        controllers = frozenset(filesystem[2].split(",")) if version == 1 else frozenset[str]()
        cgroup, point = (PurePosixPath(_unescape(field)) for field in fields[3:5])
        mounts.append(_Mount(version, controllers, cgroup, point))
    return mounts


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _chain(own: PurePosixPath, mounted: PurePosixPath) -> list[PurePosixPath]:
    """Folders below a mount point from this process's cgroup up to the mount point itself.

    A cgroup outside of what is mounted (another namespace) leaves the mount point only.
    """
    if ".." in own.parts or not own.is_relative_to(mounted):
        return [PurePosixPath()]
    relative = own.relative_to(mounted)
    return [relative, *relative.parents] if relative.parts else [relative]
