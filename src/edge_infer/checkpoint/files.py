"""Mapping and reading untrusted files: read-only mappings, bounded JSON, what a damaged file is."""

import json
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge_infer.checkpoint.errors import CheckpointError, fail

MAX_JSON_BYTES = 64 << 20

_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def map_readonly(path: Path) -> mmap.mmap:
    """Map a whole file shared and read-only. An empty or unreadable file is a CheckpointError."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise fail(path, "the file is empty: an interrupted download? Fetch it again")
            return mmap.mmap(file.fileno(), size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    except OSError as error:
        raise fail(path, f"cannot be opened: {error.strerror}") from error


def damage_hint(head: bytes) -> str | None:
    """Say what a file that is not what it should be looks like, from its first bytes."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "it is an HTML or XML page, such as an error page saved as the file: fetch it again"
    if text.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, not the data: fetch the file itself"
    if head[:4] == b"GGUF":
        return "it is a GGUF file"
    if head[:4] == b"PK\x03\x04" or (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05"):
        return "it is a pickle (PyTorch) file, which is never loaded: save it as safetensors"
    if text.startswith((b"{", b"[")):
        return "it is JSON text, such as an error answer saved as the file: fetch it again"
    if head and not head.strip(b"\0"):
        return "its first bytes are all zero: an interrupted or damaged download; fetch it again"
    return None


def refuse_pickle(path: Path) -> None:
    """Raise when `path` is named like a pickle file."""
    if path.suffix.lower() in _PICKLE_SUFFIXES:
        raise fail(
            path,
            "pickle files can run code and are never loaded: get the repository's safetensors "
            "files, or convert this one with transformers' save_pretrained",
        )


def loads_json(text: bytes, path: Path, what: str) -> Any:
    """Parse strict JSON: UTF-8, no duplicate keys, no NaN or Infinity, bounded nesting."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise fail(path, f"{what} has the key {twice!r} twice")
        return out

    def constant(name: str) -> Any:
        raise fail(path, f"{what} holds {name}, which is not JSON")

    return _parse(text, path, what, object_pairs_hook=unique, parse_constant=constant)


def _parse(text: bytes, path: Path, what: str, **hooks: Callable[..., Any]) -> Any:
    try:
        return json.loads(text.decode("utf-8"), **hooks)  # type: ignore[arg-type]
    except CheckpointError:
        raise
    except RecursionError as error:
        raise fail(path, f"{what} is nested too deeply") from error
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, digits of an integer
        raise fail(path, f"{what} is not valid JSON: {error}") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file of at most 64 MiB whose top level is an object."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_JSON_BYTES:
                raise fail(path, f"the file has {size} bytes, limit {MAX_JSON_BYTES}")
            text = file.read(size)
    except OSError as error:
        raise fail(path, f"cannot be opened: {error.strerror}") from error
    # HF configurations may hold NaN or Infinity (Python's writer allows them).
    value = _parse(text, path, "the file")
    if not isinstance(value, dict):
        raise fail(path, f"the top level is {type(value).__name__}, expected an object")
    return value


def write_json(path: Path, value: Any) -> None:
    """Write indented UTF-8 JSON with a final newline and flush it to the disk."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
