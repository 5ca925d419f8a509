"""A checked reader for GGUF version 2 and 3 files over a read-only mapping.

The format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic, version, counts,
typed key-value metadata, tensor descriptions, then aligned tensor data. Files are untrusted: every
count, length and offset is checked against the file before it is used.
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_infer.checkpoint.errors import CheckpointError, fail
from edge_infer.checkpoint.files import damage_hint, map_readonly
from edge_infer.checkpoint.gguf_types import GGML_TYPES, GgmlType

MAGIC = b"GGUF"
MAX_METADATA = 1 << 16
MAX_TENSORS = 1 << 18
MAX_ARRAY_ITEMS = 1 << 23  # over all arrays of a file: a bound on the memory of the metadata
MAX_ARRAY_DEPTH = 2
MAX_NAME_BYTES = 1 << 16
MAX_ELEMENTS = 1 << 48
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}


@dataclass(frozen=True)
class GgufTensor:
    """One tensor: `shape` slowest dimension first (as numpy), `begin` its byte in the file."""

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    begin: int
    nbytes: int


class GgufFile:
    """A mapped GGUF file: ``metadata`` (plain Python values), ``tensors`` by name, ``blocks``."""

    def __init__(self, path: Path) -> None:
        """Map `path` and check everything up to the data; CheckpointError says what is wrong."""
        self.path = path
        self._map: mmap.mmap | None = map_readonly(path)
        self.version = 0
        self.alignment = DEFAULT_ALIGNMENT
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        self._read(_Cursor(path, self._map))

    def blocks(self, name: str) -> np.ndarray:
        """A read-only view uint8 [rows, blocks per row, bytes per block] of a tensor."""
        if self._map is None:
            raise fail(self.path, "the file was closed", tensor=name)
        tensor = self.tensors[name]
        flat = np.frombuffer(self._map, np.uint8, tensor.nbytes, tensor.begin)
        per_row = tensor.shape[-1] // tensor.type.block_size
        return flat.reshape(-1, per_row, tensor.type.block_bytes)

    def close(self) -> None:
        """Drop the mapping; it lives on as long as a view of it does."""
        self._map = None

    def _read(self, cursor: "_Cursor") -> None:
        self._read_version(cursor)
        tensor_count = cursor.count("tensor_count", MAX_TENSORS, 24)
        metadata_count = cursor.count("metadata_kv_count", MAX_METADATA, 13)
        for _ in range(metadata_count):
            key = cursor.string("a metadata key", MAX_NAME_BYTES)
            if key in self.metadata:
                raise fail(self.path, f"metadata key {key!r} occurs twice")
            kind = cursor.scalar("<I", f"the type of {key!r}")
            self.metadata[key] = cursor.value(kind, f"metadata {key!r}")
        self._read_alignment()
        described = [self._describe(cursor) for _ in range(tensor_count)]
        base = -(-cursor.position // self.alignment) * self.alignment
        for name, kind, shape, offset in described:
            if name in self.tensors:
                raise fail(self.path, "is described twice", tensor=name)
            self.tensors[name] = self._place(name, kind, shape, offset, base, cursor.size)
        self._check_overlap()

    def _read_version(self, cursor: "_Cursor") -> None:
        head = cursor.peek(512)
        if head[:4] != MAGIC:
            raise fail(self.path, f"not a GGUF file: {damage_hint(head) or f'magic {head[:4]!r}'}")
        cursor.position = 4
        self.version = cursor.scalar("<I", "version")
        if self.version not in (2, 3):
            note = " (a big-endian file?)" if self.version & 0xFFFF == 0 else ""
            raise fail(self.path, f"GGUF version is {self.version}{note}, expected 2 or 3")

    def _read_alignment(self) -> None:
        value = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(value) is not int or not 8 <= value <= MAX_ALIGNMENT or value % 8:
            raise fail(
                self.path,
                f"general.alignment is {value!r}, expected a multiple of 8 up to {MAX_ALIGNMENT}",
            )
        self.alignment = value

    def _describe(self, cursor: "_Cursor") -> tuple[str, int, tuple[int, ...], int]:
        name = cursor.string("a tensor name", MAX_NAME_BYTES)
        rank = cursor.scalar("<I", f"n_dims of tensor {name!r}")
        if not 1 <= rank <= 4:
            raise fail(self.path, f"n_dims is {rank}, expected 1 to 4", tensor=name)
        dims = tuple(cursor.scalar("<Q", f"dims of tensor {name!r}") for _ in range(rank))
        kind = cursor.scalar("<I", f"type of tensor {name!r}")
        offset = cursor.scalar("<Q", f"offset of tensor {name!r}")
        return name, kind, dims[::-1], offset

    def _place(
        self, name: str, kind: int, shape: tuple[int, ...], offset: int, base: int, size: int
    ) -> GgufTensor:
        ggml = GGML_TYPES.get(kind)
        if ggml is None:
            raise fail(self.path, f"type {kind} is unknown", tensor=name)
        elements = 1
        for dim in shape:
            elements *= dim
            if dim < 1 or elements > MAX_ELEMENTS:
                raise fail(
                    self.path, f"shape {shape} must be of 1 to {MAX_ELEMENTS} elements", tensor=name
                )
        if shape[-1] % ggml.block_size:
            raise fail(
                self.path,
                f"row length {shape[-1]} is not a multiple of {ggml.name}'s {ggml.block_size}",
                tensor=name,
            )
        if offset % self.alignment:
            raise fail(
                self.path, f"offset {offset} is not aligned to {self.alignment}", tensor=name
            )
        nbytes = elements // ggml.block_size * ggml.block_bytes
        if base + offset + nbytes > size:
            raise fail(
                self.path,
                f"ends at byte {base + offset + nbytes}, the file has {size}: truncated, fetch it "
                "again",
                tensor=name,
            )
        return GgufTensor(name, ggml, shape, base + offset, nbytes)

    def _check_overlap(self) -> None:
        end, previous = 0, ""
        for tensor in sorted(self.tensors.values(), key=lambda item: item.begin):
            if tensor.begin < end:
                raise fail(self.path, f"its data overlap those of {previous!r}", tensor=tensor.name)
            end, previous = tensor.begin + tensor.nbytes, tensor.name


class _Cursor:
    """Sequential reads of a mapping, each checked against what is left of it."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.position = 0
        self._items = 0

    def peek(self, count: int) -> bytes:
        return self.data[self.position : self.position + count]

    def take(self, count: int, what: str) -> bytes:
        if count > self.size - self.position:
            raise fail(
                self.path,
                f"{what} needs {count} bytes at {self.position}, the file has {self.size}",
            )
        self.position += count
        return self.data[self.position - count : self.position]

    def scalar(self, code: str, what: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code), what))[0]

    def count(self, what: str, limit: int, item_bytes: int) -> int:
        value: int = self.scalar("<Q", what)
        limit = min(limit, (self.size - self.position) // item_bytes)
        if value > limit:
            raise fail(self.path, f"{what} is {value}, at most {limit} are possible")
        return value

    def string(self, what: str, limit: int) -> str:
        length: int = self.scalar("<Q", what)
        if length > limit:
            raise fail(self.path, f"the length of {what} is {length}, limit {limit}")
        try:
            return self.take(length, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise fail(self.path, f"{what} is not UTF-8: {error.reason}") from error

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind], what)
        if kind == _STRING:
            return self.string(what, self.size)
        if kind != _ARRAY:
            raise fail(self.path, f"{what} has the unknown type {kind}")
        if depth == MAX_ARRAY_DEPTH:
            raise fail(self.path, f"{what} nests arrays deeper than {MAX_ARRAY_DEPTH}")
        return self._array(what, depth)

    def _array(self, what: str, depth: int) -> list[Any]:
        kind: int = self.scalar("<I", what)
        code = _SCALARS.get(kind)
        item_bytes = struct.calcsize(code) if code else 8
        length = self.count(f"the length of {what}", MAX_ARRAY_ITEMS - self._items, item_bytes)
        self._items += length
        if code:
            packed = self.take(length * item_bytes, what)
            return list(struct.unpack(f"<{length}{code[1]}", packed))
        read: Callable[[], Any] = lambda: self.value(kind, what, depth + 1)  # noqa: E731
        return [read() for _ in range(length)]


def is_gguf(path: str | Path) -> bool:
    """Whether `path` is a file that begins with the GGUF magic."""
    path = Path(path)
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) == MAGIC
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be opened: {error.strerror}") from error
