"""The GGUF reader and the dequantization of every type against the reference package."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoint_samples import LLAMA, write_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_infer.checkpoint.errors import CheckpointError
from edge_infer.checkpoint.gguf_file import GgufFile, is_gguf
from edge_infer.checkpoint.gguf_types import GGML_TYPES, can_dequantize, dequantize_blocks

QTYPE = gguf.GGMLQuantizationType


def test_type_sizes_equal_the_reference() -> None:
    for number, kind in GGML_TYPES.items():
        reference = QTYPE(number)
        assert reference.name == kind.name
        assert gguf.GGML_QUANT_SIZES[reference] == (kind.block_size, kind.block_bytes)


@pytest.mark.parametrize(
    "kind", [kind for kind in GGML_TYPES.values() if can_dequantize(kind)], ids=lambda k: k.name
)
def test_dequantization_is_bit_exact_on_random_blocks(kind: Any) -> None:
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (512, kind.block_bytes), dtype=np.uint8)
    # Random scales may be NaN or infinite: bits decide, except for the payload of a NaN.
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(blocks, QTYPE[kind.name]).reshape(-1)
        ours = dequantize_blocks(kind, blocks).reshape(-1)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(ours), nan)
    np.testing.assert_array_equal(ours[~nan].view(np.uint32), expected[~nan].view(np.uint32))
    assert (~nan).mean() > 0.9


def test_metadata_and_tensors_equal_the_reference_reader(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -100)
    writer.add_uint16("a.u16", 60000)
    writer.add_int16("a.i16", -30000)
    writer.add_uint64("a.u64", 2**63)
    writer.add_int64("a.i64", -(2**62))
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "naïve ☃")
    writer.add_array("a.strings", ["a", "", "ü"])
    writer.add_array("a.floats", [0.5, 1.5])
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_tensor("w", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(path)
    reference = gguf.GGUFReader(path)
    for key, field in reference.fields.items():
        if not key.startswith("GGUF."):
            assert file.metadata[key] == field.contents()
    assert file.metadata["a.u64"] == 2**63
    assert file.metadata["a.bool"] is True
    tensor = file.tensors["w"]
    assert (tensor.type.name, tensor.shape, tensor.nbytes) == ("F32", (3, 4), 48)
    values = file.blocks("w").reshape(-1).view(np.float32)
    np.testing.assert_array_equal(values, np.arange(12))
    assert not values.flags.writeable
    assert is_gguf(path)
    assert not is_gguf(tmp_path)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def gguf_bytes(
    metadata: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = b"\0" * 64,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A GGUF file put together by hand."""
    metadata, tensors = metadata or [], tensors or []
    tensor_count, metadata_count = counts or (len(tensors), len(metadata))
    head = b"GGUF" + struct.pack("<IQQ", version, tensor_count, metadata_count)
    body = head + b"".join(metadata) + b"".join(tensors)
    return body + b"\0" * (-len(body) % 32) + data


def entry(
    name: bytes = b"w", dims: tuple[int, ...] = (16,), kind: int = 0, offset: int = 0
) -> bytes:
    packed = text(name) + struct.pack("<I", len(dims))
    return (
        packed + b"".join(struct.pack("<Q", dim) for dim in dims) + struct.pack("<IQ", kind, offset)
    )


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, items: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + items


BAD_FILES: list[tuple[bytes, str]] = [
    (b"", "empty"),
    (b"<html>" + b" " * 99, "HTML"),
    (b"\0" * 99, "all zero"),
    (b"GGUF", "version needs 4 bytes"),
    (gguf_bytes(version=1), "version is 1"),
    (gguf_bytes(version=0x03000000), "big-endian"),
    (gguf_bytes(counts=(2**63, 0)), "tensor_count is"),
    (gguf_bytes(counts=(0, 2**40)), "metadata_kv_count is"),
    (gguf_bytes([pair(b"k", 4, b"\1\0\0\0")] * 2), "occurs twice"),
    (gguf_bytes([pair(b"k", 99, b"")]), "unknown type 99"),
    (gguf_bytes([pair(b"k", 8, struct.pack("<Q", 2**62))]), "length of metadata 'k'"),
    (gguf_bytes([pair(b"k", 8, text(b"\xff\xfe"))]), "not UTF-8"),
    (gguf_bytes([pair(b"\xff", 4, b"\0\0\0\0")]), "not UTF-8"),
    (gguf_bytes([pair(b"k", 9, array(4, 2**61))]), "length of metadata 'k'"),
    (gguf_bytes([pair(b"k", 9, array(9, 1, array(9, 1, array(9, 1))))]), "nests arrays"),
    (gguf_bytes([pair(b"general.alignment", 4, struct.pack("<I", 0))]), "general.alignment is 0"),
    (gguf_bytes([pair(b"general.alignment", 4, struct.pack("<I", 12))]), "general.alignment"),
    (gguf_bytes([pair(b"general.alignment", 8, text(b"32"))]), "general.alignment"),
    (gguf_bytes(tensors=[entry(dims=())]), "n_dims is 0"),
    (gguf_bytes(tensors=[entry(dims=(1,) * 5)]), "n_dims is 5"),
    (gguf_bytes(tensors=[entry(dims=(0,))]), "must be of 1 to"),
    (gguf_bytes(tensors=[entry(dims=(2**62, 2**62))]), "must be of 1 to"),
    (gguf_bytes(tensors=[entry(kind=4)]), "type 4 is unknown"),
    (gguf_bytes(tensors=[entry(kind=2, dims=(33,))]), "not a multiple of Q4_0"),
    (gguf_bytes(tensors=[entry(offset=4)]), "not aligned"),
    (gguf_bytes(tensors=[entry(dims=(17,))]), "truncated"),
    (gguf_bytes(tensors=[entry(offset=2**63)]), "truncated"),
    (gguf_bytes(tensors=[entry(), entry()]), "described twice"),
    (gguf_bytes(tensors=[entry(), entry(b"v")]), "overlap"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES)
def test_damaged_files_are_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        GgufFile(path)
    assert "bad.gguf" in str(caught.value)


def test_hand_made_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(tensors=[entry()], data=np.arange(16, dtype="<f4").tobytes()))
    values = GgufFile(path).blocks("w").reshape(-1).view(np.float32)
    np.testing.assert_array_equal(values, np.arange(16))


@pytest.fixture(scope="module")
def real_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write_gguf(path, LLAMA, QTYPE.Q4_0)
    return path.read_bytes()


def test_every_truncation_is_refused(tmp_path: Path, real_bytes: bytes) -> None:
    path = tmp_path / "m.gguf"
    # The data of the last tensor end where the file does, up to padding.
    for size in range(0, len(real_bytes) - 32, 501):
        path.write_bytes(real_bytes[:size])
        with pytest.raises(CheckpointError):
            GgufFile(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_no_flipped_byte_raises_anything_else(
    tmp_path: Path, real_bytes: bytes, data: st.DataObject
) -> None:
    content = bytearray(real_bytes)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 2000))] = data.draw(st.integers(0, 255))
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    try:
        file = GgufFile(path)
    except CheckpointError:
        return
    for name, tensor in file.tensors.items():
        assert file.blocks(name).nbytes == tensor.nbytes


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200), st.integers(0, 3), st.integers(0, 3))
def test_no_random_body_raises_anything_else(
    tmp_path: Path, body: bytes, tensors: int, metadata: int
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, metadata) + body)
    try:
        GgufFile(path)
    except CheckpointError:
        return
