"""A checked reader for safetensors files over a read-only mapping.

The format (https://github.com/huggingface/safetensors): an 8-byte little-endian header length N, N
bytes of JSON ``{name: {"dtype", "shape", "data_offsets": [begin, end]}}``, then the data, without
holes. Files are untrusted: everything the header says is checked against the file before a view is
handed out.
"""

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_infer.checkpoint.errors import fail
from edge_infer.checkpoint.files import damage_hint, loads_json, map_readonly, refuse_pickle

MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation
MAX_RANK = 8
MAX_ELEMENTS = 1 << 48

# Bytes per element and the numpy type of a view; bf16 and fp8 have no numpy type.
DTYPES: dict[str, tuple[int, type[np.generic]]] = {
    "BOOL": (1, np.bool_),
    "U8": (1, np.uint8),
    "I8": (1, np.int8),
    "F8_E4M3": (1, np.uint8),
    "F8_E5M2": (1, np.uint8),
    "F8_E8M0": (1, np.uint8),
    "U16": (2, np.uint16),
    "I16": (2, np.int16),
    "F16": (2, np.float16),
    "BF16": (2, np.uint16),
    "U32": (4, np.uint32),
    "I32": (4, np.int32),
    "F32": (4, np.float32),
    "U64": (8, np.uint64),
    "I64": (8, np.int64),
    "F64": (8, np.float64),
}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file; `begin` and `end` are byte positions in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.end - self.begin


class SafetensorsFile:
    """A mapped safetensors file: ``entries`` by name, ``metadata``, zero-copy ``view``s."""

    def __init__(self, path: Path) -> None:
        """Map `path` and check its header; CheckpointError says what is wrong with it."""
        refuse_pickle(path)
        self.path = path
        self._map: mmap.mmap | None = map_readonly(path)
        self.metadata: dict[str, str] = {}
        self.entries: dict[str, TensorEntry] = {}
        self._read_header(self._map)

    def view(self, name: str) -> np.ndarray:
        """A read-only view of a tensor in its file shape; bf16 as uint16, fp8 as uint8."""
        if self._map is None:
            raise fail(self.path, "the file was closed", tensor=name)
        entry = self.entries[name]
        kind = DTYPES[entry.dtype][1]
        flat = np.frombuffer(self._map, np.uint8, entry.nbytes, entry.begin)
        return flat.view(kind).reshape(entry.shape)

    def close(self) -> None:
        """Drop the mapping; it lives on as long as a view of it does."""
        self._map = None

    def _read_header(self, data: mmap.mmap) -> None:
        size = len(data)
        if size < 8:
            raise fail(self.path, f"the file has {size} bytes, a safetensors file at least 10")
        length = int.from_bytes(data[:8], "little")
        limit = min(MAX_HEADER_BYTES, size - 8)
        if length < 2 or length > limit or data[8:9] != b"{":
            hint = damage_hint(data[:512])
            if hint is None and MAX_HEADER_BYTES >= length > size - 8:
                hint = f"the header says {length} bytes, the file has {size - 8} more: truncated?"
            elif hint is None:
                hint = f"header length {length}, limit {limit}"
            raise fail(self.path, f"not a safetensors file: {hint}")
        header = loads_json(data[8 : 8 + length], self.path, "the header")
        if not isinstance(header, dict):
            raise fail(self.path, "the header is not a JSON object")
        self.metadata = self._checked_metadata(header.pop("__metadata__", {}))
        for name, raw in header.items():
            self.entries[name] = self._checked_entry(name, raw, 8 + length)
        self._check_cover(8 + length, size)

    def _checked_metadata(self, raw: Any) -> dict[str, str]:
        if not isinstance(raw, dict) or not all(isinstance(value, str) for value in raw.values()):
            raise fail(self.path, "__metadata__ is not an object of strings")
        return raw

    def _checked_entry(self, name: str, raw: Any, base: int) -> TensorEntry:
        def bad(message: str) -> Exception:
            return fail(self.path, message, tensor=name)

        if not isinstance(raw, dict) or set(raw) != {"dtype", "shape", "data_offsets"}:
            raise bad("its entry must have exactly dtype, shape and data_offsets")
        dtype, shape, offsets = raw["dtype"], raw["shape"], raw["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise bad(f"dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
        if not _counts(shape) or len(shape) > MAX_RANK:
            raise bad(f"shape is {_short(shape)}, expected at most {MAX_RANK} integers from 0")
        if not _counts(offsets) or len(offsets) != 2:
            raise bad(f"data_offsets is {_short(offsets)}, expected two integers from 0")
        elements = 1
        for dim in shape:
            elements *= dim
            if dim > MAX_ELEMENTS or elements > MAX_ELEMENTS:
                raise bad(f"shape {shape} has more than {MAX_ELEMENTS} elements")
        begin, end = offsets
        if end - begin != elements * DTYPES[dtype][0]:
            raise bad(
                f"data_offsets {offsets} span {end - begin} bytes, dtype {dtype} and shape {shape} "
                f"need {elements * DTYPES[dtype][0]}"
            )
        return TensorEntry(name, dtype, tuple(shape), base + begin, base + end)

    def _check_cover(self, base: int, size: int) -> None:
        position, previous = base, "the header"
        for entry in sorted(self.entries.values(), key=lambda item: (item.begin, item.end)):
            if entry.begin != position:
                kind = "overlaps" if entry.begin < position else "leaves a hole after"
                raise fail(self.path, f"data_offsets {kind} {previous}", tensor=entry.name)
            if entry.end > size:
                raise fail(
                    self.path,
                    f"ends at byte {entry.end}, the file has {size}: truncated, fetch it again",
                    tensor=entry.name,
                )
            position, previous = entry.end, repr(entry.name)
        if position != size:
            raise fail(self.path, f"{size - position} bytes follow the last tensor")


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
