"""The folder where converted models and download records are kept, and how it is shared."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from edge_infer.hub.errors import ModelSourceError

CACHE_VARIABLE = "EDGE_INFER_CACHE"

_log = logging.getLogger(__name__)
_ENDS_BYTES = 1 << 20


def cache_folder(explicit: Path | None = None) -> Path:
    """`explicit`, else EDGE_INFER_CACHE, else edge-infer in the user's cache folder."""
    if explicit is not None:
        return explicit.expanduser()
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "edge-infer"


def make_folder(path: Path) -> None:
    """Create a cache folder; ModelSourceError says how to choose another."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelSourceError(
            f"{path}: cannot be created ({error.strerror}): set {CACHE_VARIABLE} to a folder "
            "that can be written"
        ) from error


def require_space(folder: Path, nbytes: int, what: str) -> None:
    """Raise ModelSourceError when the disk of `folder` has less than `nbytes` free."""
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise ModelSourceError(
            f"{what} needs {nbytes / 1e9:.2f} GB of disk, {folder} has {free / 1e9:.2f} GB free"
        )


def fingerprint(path: Path) -> str:
    """12 hex digits that change with a file's size, time, first or last MiB."""
    status = path.stat()
    digest = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns}\n".encode())
    with path.open("rb") as file:
        digest.update(file.read(_ENDS_BYTES))
        file.seek(max(status.st_size - _ENDS_BYTES, 0))
        digest.update(file.read(_ENDS_BYTES))
    return digest.hexdigest()[:12]


def safe_name(name: str) -> str:
    """A name without anything that a file system or a shell would mind."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "model"


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`, across processes; it goes with the process."""
    make_folder(path.parent)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.warning("waiting for another process that holds %s", path)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
