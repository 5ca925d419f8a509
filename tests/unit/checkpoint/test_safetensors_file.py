"""The safetensors writer and reader against the reference library, damaged files and fuzzing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from edge_infer.checkpoint.errors import CheckpointError
from edge_infer.checkpoint.safetensors_file import SafetensorsFile
from edge_infer.checkpoint.writer import SafetensorsWriter

SPECS: dict[str, tuple[str, tuple[int, ...]]] = {
    "odd": ("U8", (7,)),
    "norm": ("F32", (5,)),
    "a.qweight": ("U8", (3, 4, 64)),
    "a.scales": ("F16", (3, 1, 16)),
    "half": ("BF16", (3, 3)),
    "b.qweight": ("U8", (1, 8, 64)),
    "b.scales": ("F16", (2, 3, 16)),
    "empty": ("F32", (0, 4)),
}


def write_samples(path: Path) -> dict[str, np.ndarray]:
    """Write SPECS with random bytes, each tensor in two parts, the second first."""
    rng = np.random.default_rng(0)
    content: dict[str, np.ndarray] = {}
    with SafetensorsWriter(path, SPECS, {"source": "test"}) as writer:
        for name, entry in writer.entries.items():
            data = rng.integers(0, 256, entry.nbytes, dtype=np.uint8)
            content[name] = data
            cut = entry.nbytes // 2
            writer.write(name, cut, data[cut:])
            writer.write(name, 0, data[:cut])
        writer.finish()
    return content


def write_raw(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """A file with a header of our choice; `length` overrides its true length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    count = len(text) if length is None else length
    path.write_bytes(count.to_bytes(8, "little") + text + data)
    return path


def test_reference_library_reads_what_the_writer_wrote(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    content = write_samples(path)
    with safe_open(path, framework="pt") as file:
        assert set(file.keys()) == set(SPECS)
        assert file.metadata() == {"format": "pt", "source": "test"}
        for name, data in content.items():
            tensor = file.get_tensor(name)
            assert tuple(tensor.shape) == SPECS[name][1]
            assert tensor.contiguous().view(torch.uint8).reshape(-1).numpy().tobytes() == (
                data.tobytes()
            )


def test_packed_tensors_begin_on_64_bytes_and_others_on_their_element(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_samples(path)
    file = SafetensorsFile(path)
    for name, entry in file.entries.items():
        size = {"U8": 1, "F16": 2, "BF16": 2, "F32": 4}[entry.dtype]
        assert entry.begin % (64 if name.endswith(".qweight") else size) == 0
        assert file.view(name).flags.aligned
        if name.endswith(".qweight"):
            assert file.view(name).ctypes.data % 64 == 0


def test_incomplete_or_misplaced_writes_are_errors(tmp_path: Path) -> None:
    with SafetensorsWriter(tmp_path / "x", {"a": ("F32", (4,))}) as writer:
        writer.write("a", 0, np.zeros(2, np.float32))
        with pytest.raises(ValueError, match="8 of 16 bytes"):
            writer.finish()
        with pytest.raises(ValueError, match="exceed 16"):
            writer.write("a", 12, np.zeros(2, np.float32))
        with pytest.raises(ValueError, match="differ in size"):
            writer.restart("a", "F16")


def test_views_are_shared_readonly_mappings_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    content = write_samples(path)
    file = SafetensorsFile(path)
    view = file.view("a.qweight")
    assert view.tobytes() == content["a.qweight"].tobytes()
    assert not view.flags.writeable
    assert not view.flags.owndata
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if path.name in line]
    assert any(line.split()[1] == "r--s" for line in lines)
    file.close()
    assert view.tobytes() == content["a.qweight"].tobytes()
    with pytest.raises(CheckpointError, match="closed"):
        file.view("a.qweight")


def test_reads_every_type_of_the_reference_library(tmp_path: Path) -> None:
    kinds = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32]
    kinds += [torch.int16, torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn]
    tensors = {str(kind): (torch.arange(6).reshape(2, 3) % 2).to(kind) for kind in kinds}
    save_file(tensors, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    for name, tensor in tensors.items():
        assert file.view(name).shape == (2, 3)
        assert file.view(name).tobytes() == tensor.view(torch.uint8).numpy().tobytes()


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BAD_HEADERS: list[tuple[Any, str]] = [
    ({"a": {**ENTRY, "dtype": "F33"}}, "dtype is 'F33'"),
    ({"a": {**ENTRY, "dtype": ["F32"]}}, "dtype is"),
    ({"a": {**ENTRY, "shape": [3]}}, "need 12"),
    ({"a": {**ENTRY, "shape": [-2]}}, "shape is"),
    ({"a": {**ENTRY, "shape": [2.0]}}, "shape is"),
    ({"a": {**ENTRY, "shape": [True, 2]}}, "shape is"),
    ({"a": {**ENTRY, "shape": [2**40, 2**40]}}, "more than"),
    ({"a": {**ENTRY, "shape": [2**62, 4, 0]}}, "more than"),
    ({"a": {**ENTRY, "shape": [1] * 9}}, "at most 8"),
    ({"a": {**ENTRY, "data_offsets": [8, 0]}}, "span -8 bytes"),
    ({"a": {**ENTRY, "data_offsets": [0, 8, 8]}}, "data_offsets is"),
    ({"a": {**ENTRY, "data_offsets": [4, 12]}}, "hole"),
    ({"a": ENTRY, "b": ENTRY}, "overlaps"),
    ({"a": {**ENTRY, "shape": [4], "data_offsets": [0, 16]}}, "the file has .*: truncated"),
    ({"a": {**ENTRY, "shape": [1], "data_offsets": [0, 4]}}, "4 bytes follow"),
    ({"a": {"dtype": "F32", "shape": [2]}}, "exactly dtype, shape and data_offsets"),
    ({"a": 3}, "exactly dtype, shape and data_offsets"),
    ({"__metadata__": {"a": 1}}, "__metadata__"),
    (b'{"a": 1, "a": 2}', "key 'a' twice"),
    (b'{"a": NaN}', "NaN"),
    (b'{"a": ', "not valid JSON"),
    (b'{"\xff": 1}', "not valid JSON"),
    (b"{" + b'"a":[' * 1, "not valid JSON"),
    (b'{"a":' + b"[" * 200_000, "nested too deeply"),
    (b'{"a":' + b"9" * 5000 + b"}", "not valid JSON"),
]


@pytest.mark.parametrize(("header", "message"), BAD_HEADERS)
def test_bad_headers_are_refused_by_name(tmp_path: Path, header: Any, message: str) -> None:
    path = write_raw(tmp_path / "bad.safetensors", header, b"\0" * 8)
    with pytest.raises(CheckpointError, match=message) as caught:
        SafetensorsFile(path)
    assert "bad.safetensors" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\x02\0\0", "3 bytes"),
        (b"\0" * 4096, "all zero"),
        (b"<!DOCTYPE html><html><body>404</body></html>" * 3, "HTML"),
        (b"\n <html>503</html>" + b" " * 64, "HTML"),
        (b'<?xml version="1.0"?><Error>' + b" " * 64, "HTML or XML"),
        (b'{"error": "Repository not found"}', "JSON text"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
        (b"GGUF\x03\0\0\0" + b"\0" * 64, "GGUF file"),
        (b"PK\x03\x04" + b"\0" * 64, "pickle"),
        (b"\x80\x02}q\x00" + b"\0" * 64, "pickle"),
        ((5000).to_bytes(8, "little") + b"{" * 100, "truncated"),
        ((1 << 62).to_bytes(8, "little") + b"{" * 100, "header length"),
    ],
)
def test_damaged_files_say_what_they_are(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "shard.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFile(path)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt", ".pkl"])
def test_pickles_are_refused_by_name_without_reading(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(CheckpointError, match="never loaded"):
        SafetensorsFile(tmp_path / f"absent{suffix}")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_samples(path)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            SafetensorsFile(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F4"]) | json_values,
        "shape": st.lists(st.integers(-1, 2**65) | st.integers(0, 4), max_size=10) | json_values,
        "data_offsets": st.lists(st.integers(-1, 64) | st.integers(), max_size=3) | json_values,
    }
)
headers = st.dictionaries(st.text(max_size=8), entries | json_values, max_size=4) | json_values


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(headers, st.binary(max_size=64), st.none() | st.integers(0, 2**64 - 1))
def test_no_header_raises_anything_else(
    tmp_path: Path, header: Any, data: bytes, length: int | None
) -> None:
    path = write_raw(tmp_path / "fuzz.safetensors", header, data, length)
    try:
        file = SafetensorsFile(path)
    except CheckpointError:
        return
    for name, entry in file.entries.items():
        assert file.view(name).nbytes == entry.nbytes


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_no_flipped_byte_raises_anything_else(tmp_path: Path, data: st.DataObject) -> None:
    source = tmp_path / "x.safetensors"
    if not source.exists():
        write_samples(source)
    content = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 700))] = data.draw(st.integers(0, 255))
    path = tmp_path / "flipped.safetensors"
    path.write_bytes(content)
    try:
        file = SafetensorsFile(path)
    except CheckpointError:
        return
    for name, entry in file.entries.items():
        assert file.view(name).nbytes == entry.nbytes
