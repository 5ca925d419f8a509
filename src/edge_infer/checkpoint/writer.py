"""Writing checkpoints: a streaming safetensors writer, and a folder that appears as a whole.

Tensors are ordered by the largest power of two (up to 64) that divides their size, and the header
is padded with spaces, so every packed tensor begins on a 64-byte boundary without the holes that
the format forbids.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import numpy as np

from edge_infer.checkpoint.errors import fail
from edge_infer.checkpoint.safetensors_file import DTYPES, TensorEntry

ALIGNMENT = 64
WEIGHTS_FILE = "model.safetensors"
_LOCK_FILE = ".lock"  # in a temporary folder: locked as long as its process lives


class SafetensorsWriter:
    """Write tensors of known shapes piecewise, in any order, at their final place.

    `tensors` maps names to (dtype, shape). The header is written last, by :meth:`finish`; room for
    it is kept so that a dtype may still change to one of the same size (f16 to bf16 scales).
    """

    def __init__(
        self,
        path: Path,
        tensors: Mapping[str, tuple[str, tuple[int, ...]]],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Create `path` (it must not exist) at its full size."""
        self.path = path
        self._metadata = {"format": "pt", **(metadata or {})}
        sizes = {name: _nbytes(dtype, shape) for name, (dtype, shape) in tensors.items()}
        ordered = sorted(tensors, key=lambda name: -_power_of_two(sizes[name]))
        self.entries: dict[str, TensorEntry] = {}
        position = 0
        for name in ordered:
            dtype, shape = tensors[name]
            self.entries[name] = TensorEntry(name, dtype, shape, position, position + sizes[name])
            position += sizes[name]
        # The reserve covers every dtype name growing to the longest one.
        reserve = len(self._header_text()) + len(ordered) * max(map(len, DTYPES))
        self._base = -(-(8 + reserve) // ALIGNMENT) * ALIGNMENT
        self._written = dict.fromkeys(ordered, 0)
        self._lock = threading.Lock()
        free = shutil.disk_usage(path.parent).free
        if free < self._base + position:
            raise fail(path, f"{self._base + position} bytes are needed, the disk has {free} free")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._fd, self._base + position)

    def write(self, name: str, offset: int, data: np.ndarray) -> None:
        """Write an array's bytes at byte `offset` of tensor `name`; threads may call it at once."""
        entry = self.entries[name]
        if offset < 0 or offset + data.nbytes > entry.nbytes:
            raise ValueError(f"{name}: {data.nbytes} bytes at {offset} exceed {entry.nbytes}")
        buffer = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
        position = self._base + entry.begin + offset
        while buffer:
            count = os.pwrite(self._fd, buffer, position)
            buffer, position = buffer[count:], position + count
        with self._lock:
            self._written[name] += data.nbytes

    def restart(self, name: str, dtype: str) -> None:
        """Forget what was written of `name` and give it another dtype of the same size."""
        entry = self.entries[name]
        if DTYPES[dtype][0] != DTYPES[entry.dtype][0]:
            raise ValueError(f"{name}: {dtype} and {entry.dtype} differ in size")
        self.entries[name] = TensorEntry(name, dtype, entry.shape, entry.begin, entry.end)
        self._written[name] = 0

    def finish(self) -> None:
        """Check that every byte was written, write the header, flush to the disk and close."""
        for name, entry in self.entries.items():
            if self._written[name] != entry.nbytes:
                raise ValueError(f"{name}: {self._written[name]} of {entry.nbytes} bytes written")
        text = self._header_text().ljust(self._base - 8)
        os.pwrite(self._fd, len(text).to_bytes(8, "little") + text, 0)
        os.fsync(self._fd)
        self.close()

    def close(self) -> None:
        """Close the file without completing it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "SafetensorsWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _header_text(self) -> bytes:
        header: dict[str, object] = {"__metadata__": self._metadata}
        for name, entry in self.entries.items():
            header[name] = {
                "dtype": entry.dtype,
                "shape": list(entry.shape),
                "data_offsets": [entry.begin, entry.end],
            }
        return json.dumps(header, separators=(",", ":")).encode()


@contextmanager
def new_folder(dst: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside `dst` that becomes `dst` when the block succeeds.

    An existing `dst` is refused unless it is an empty folder or, with `force`, an earlier
    checkpoint, which stays in place until the new one is complete. On failure nothing remains;
    what killed processes left of earlier attempts is cleared away first.
    """
    dst.parent.mkdir(parents=True, exist_ok=True)
    _recover(dst)
    _check_replaceable(dst, force)
    temporary, lock = _locked_folder(dst)
    try:
        temporary.chmod(0o755)
        yield temporary
        for file in temporary.iterdir():
            _sync(file)
        _sync(temporary)
        _check_replaceable(dst, force)
        if dst.is_dir():
            old = Path(tempfile.mkdtemp(prefix=f".{dst.name}.", suffix=".old", dir=dst.parent))
            dst.rename(old)  # replaces the empty folder
            temporary.rename(dst)
            shutil.rmtree(old, ignore_errors=True)  # another process may clear it away too
        else:
            temporary.rename(dst)
        (dst / _LOCK_FILE).unlink()
        _sync(dst.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(lock)


def _locked_folder(dst: Path) -> tuple[Path, int]:
    """A new temporary folder for `dst` and the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{dst.name}.", suffix=".tmp", dir=dst.parent))
        lock = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return folder, lock
        os.close(lock)  # another process took it for an abandoned one before it was locked


def _recover(dst: Path) -> None:
    """Remove what killed processes had begun for `dst`, and put back what they had moved away."""
    alive = False
    for temporary in _left(dst, "tmp"):
        # one without a lock file has just been made
        with contextlib.suppress(FileNotFoundError), (temporary / _LOCK_FILE).open("rb+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                alive = True
                continue
            shutil.rmtree(temporary, ignore_errors=True)
    if alive:  # it may be replacing `dst` now
        return
    for old in _left(dst, "old"):
        if not dst.exists() and any(old.iterdir()):
            old.rename(dst)
        else:
            shutil.rmtree(old, ignore_errors=True)


def _left(dst: Path, suffix: str) -> list[Path]:
    """The folders beside `dst` that :func:`new_folder` named."""
    name = re.compile(rf"\.{re.escape(dst.name)}\.[a-z0-9_]{{8}}\.{suffix}")
    return sorted(
        path
        for path in dst.parent.iterdir()
        if name.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
    )


def _check_replaceable(dst: Path, force: bool) -> None:
    if not (dst.exists() or dst.is_symlink()):
        return
    if not dst.is_dir() or dst.is_symlink():
        raise fail(dst, "exists and is not a folder; choose another destination")
    if not any(dst.iterdir()):
        return
    if not force:
        raise fail(dst, "exists and is not empty; choose another destination or pass --force")
    if not (dst / "config.json").is_file() or not any(dst.glob("*.safetensors")):
        raise fail(dst, "--force replaces an earlier checkpoint only, and this is none")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    size = DTYPES[dtype][0]
    for dim in shape:
        size *= dim
    return size


def _power_of_two(size: int) -> int:
    return min(ALIGNMENT, size & -size) if size else ALIGNMENT
