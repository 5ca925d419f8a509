"""Opening folders: HF (single, sharded), cpu_int4, and everything that must be refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_samples import LLAMA, QWEN3, random_tensors, write_hf_folder
from hypothesis import given
from hypothesis import strategies as st

from edge_infer.checkpoint import CheckpointError, open_checkpoint
from edge_infer.checkpoint.format import parse_quantization_config
from edge_infer.checkpoint.random_weights import write_random_checkpoint
from edge_infer.checkpoint.safetensors_file import SafetensorsFile
from edge_infer.checkpoint.writer import SafetensorsWriter


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_hf_folder_opens_dense_without_copies(
    tmp_path: Path, shards: int, dtype: torch.dtype
) -> None:
    tensors = random_tensors(LLAMA, dtype)
    write_hf_folder(tmp_path, LLAMA, tensors, shards)
    with open_checkpoint(tmp_path) as checkpoint:
        name = "model.layers.1.mlp.down_proj"
        linear = checkpoint.linear(name)
        stored = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}[dtype]
        assert (linear.format, linear.group_size, linear.n, linear.k) == (stored, 0, 64, 96)
        assert linear.data.shape == (64, 96)
        assert linear.data.dtype == (np.uint16 if stored == "bf16" else f"float{stored[1:]}")
        assert (
            linear.data.tobytes() == tensors[f"{name}.weight"].view(torch.uint8).numpy().tobytes()
        )
        assert not linear.data.flags.owndata
        assert linear.scales is None
        assert linear.offsets is None
        norm = checkpoint.array("model.norm.weight")
        assert norm.dtype == np.float32
        assert norm.flags.writeable  # a copy, not the mapping
        np.testing.assert_array_equal(norm, tensors["model.norm.weight"].float().numpy())
        assert checkpoint.has_linear("lm_head")
        assert not checkpoint.has_linear("model.norm")
        assert checkpoint.has("model.norm.weight")
        assert {row.name for row in checkpoint.entries()} == set(tensors)
        assert len(checkpoint.files) == shards
        assert all(file.is_file() for file in checkpoint.files)


def test_quantized_folder_gives_the_declared_views(tmp_path: Path) -> None:
    path = write_random_checkpoint(QWEN3, tmp_path / "m", form="min", group_size=128)
    with open_checkpoint(path) as checkpoint:
        linear = checkpoint.linear("model.layers.0.mlp.gate_proj")
        assert (linear.format, linear.form, linear.group_size) == ("int4", "min", 128)
        assert linear.data.shape == (6, 32, 64)
        assert linear.data.ctypes.data % 64 == 0
        assert linear.scales is not None
        assert linear.offsets is not None
        assert linear.scales.dtype == linear.offsets.dtype == np.uint16
        assert linear.scales.shape == linear.offsets.shape == (6, 2, 16)
        # K = 96 is not a multiple of 64 or 128.
        assert checkpoint.linear("model.layers.0.mlp.down_proj").group_size == 32
        head = checkpoint.linear("model.embed_tokens")
        assert (head.format, head.group_size, head.n) == ("int8", 32, 50)
        assert head.data.shape == (4, 64, 64)
        rows = {row.name: row for row in checkpoint.entries()}
        assert rows["model.embed_tokens"].shape == (50, 256)
        assert rows["model.embed_tokens"].nbytes == head.nbytes
        stored = sum(
            entry.nbytes for entry in SafetensorsFile(path / "model.safetensors").entries.values()
        )
        assert sum(row.nbytes for row in rows.values()) == stored
        assert "lm_head" not in rows


def test_require_lists_everything_that_is_missing(tmp_path: Path) -> None:
    write_hf_folder(tmp_path, LLAMA, random_tensors(LLAMA))
    with open_checkpoint(tmp_path) as checkpoint:
        checkpoint.require(["lm_head"], ["model.norm.weight"])
        with pytest.raises(CheckpointError, match=r"3 tensors .* a, model\.norm, b\.bias"):
            checkpoint.require(["lm_head", "a", "model.norm"], ["b.bias"])
        with pytest.raises(CheckpointError, match=r"tensor 'c\.weight': is missing"):
            checkpoint.linear("c")


def test_missing_and_damaged_shards_are_named(tmp_path: Path) -> None:
    write_hf_folder(tmp_path, LLAMA, random_tensors(LLAMA), shards=4)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    shards[1].write_bytes(b"<html>404</html>" + b" " * 64)
    whole = shards[2].read_bytes()
    shards[2].write_bytes(b"\0" * 512 + whole[512:])
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    assert "00002-of-00004.safetensors: not a safetensors file: it is an HTML" in str(caught.value)
    assert (
        "00003-of-00004.safetensors: not a safetensors file: its first bytes are all zero"
        in str(caught.value)
    )
    shards[3].unlink()
    with pytest.raises(CheckpointError, match="1 of 4 shards are missing: model-00004"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/x.safetensors", "a\\b.safetensors", 3])
def test_index_cannot_lead_outside_the_folder(tmp_path: Path, name: Any) -> None:
    write_hf_folder(tmp_path, LLAMA, random_tensors(LLAMA), shards=2)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["lm_head.weight"] = name
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="weight_map names"):
        open_checkpoint(tmp_path)


def test_index_that_contradicts_the_shards_is_refused(tmp_path: Path) -> None:
    write_hf_folder(tmp_path, LLAMA, random_tensors(LLAMA), shards=2)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["extra.weight"] = content["weight_map"]["lm_head.weight"]
    content["weight_map"]["more.weight"] = content["weight_map"]["lm_head.weight"]
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"2 tensors .*: extra\.weight, more\.weight"):
        open_checkpoint(tmp_path)


def test_folders_with_only_pickles_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="neither"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*save_pretrained"):
        open_checkpoint(tmp_path)


def test_paths_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        open_checkpoint(tmp_path / "absent")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="edge-infer quantize"):
        open_checkpoint(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be opened"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="expected an object"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors", None])
def test_other_quantizations_are_refused(tmp_path: Path, method: str | None) -> None:
    config = {**LLAMA, "quantization_config": {"quant_method": method}}
    write_hf_folder(tmp_path, config, random_tensors(LLAMA))
    with pytest.raises(CheckpointError, match="not supported yet"):
        open_checkpoint(tmp_path)


MODULE = "model.layers.0.self_attn.q_proj"
BAD_MODULES: list[tuple[dict[str, Any], str]] = [
    ({"n": 80}, "config.json implies"),
    ({"k": 128}, "config.json implies"),
    ({"k": 65}, "not a multiple of group_size"),
    ({"k": 1 << 60}, "expected an integer"),
    ({"n": True}, "expected an integer"),
    ({"n": "64"}, "expected an integer"),
    ({"group_size": 32}, "config.json implies"),
    ({"group_size": 16}, "group_size is 16"),
    ({"group_size": 64.0}, "group_size is 64.0|expected an integer"),
    ({"format": "int3"}, "format is 'int3'"),
    ({"format": ["int4"]}, "format is"),
    ({"format": "int8"}, "config.json implies"),
    ({"form": "min"}, "1 tensors are missing: .*q_proj.mins"),
    ({"form": "affine"}, "form is 'affine'"),
    ({"scale_type": "bf16"}, "config.json implies BF16"),
    ({"scale_type": "f32"}, "scale_type is 'f32'"),
    ({"extra": 1}, "exactly the fields"),
]


@pytest.mark.parametrize(("change", "message"), BAD_MODULES)
def test_modules_that_disagree_with_the_file_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = write_random_checkpoint(LLAMA, tmp_path / "m", group_size=64)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"]["modules"][MODULE].update(change)
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(path)
    assert MODULE in str(caught.value)


def test_packed_tensors_without_a_module_and_unknown_versions(tmp_path: Path) -> None:
    path = write_random_checkpoint(LLAMA, tmp_path / "m")
    config = json.loads((path / "config.json").read_text())
    del config["quantization_config"]["modules"][MODULE]
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"no quantization_config\.modules entry"):
        open_checkpoint(path)
    for value in (2, "1", None):
        config["quantization_config"]["version"] = value
        (path / "config.json").write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match="version is"):
            open_checkpoint(path)
    config["quantization_config"] = {"quant_method": "cpu_int4", "version": 1, "modules": []}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="modules is list"):
        open_checkpoint(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
modules = st.fixed_dictionaries(
    {
        "format": st.sampled_from(["int4", "int8"]) | json_values,
        "form": st.sampled_from(["symmetric", "zero", "min"]) | json_values,
        "scale_type": st.sampled_from(["f16", "bf16"]) | json_values,
        "group_size": st.sampled_from([32, 64, 128]) | json_values,
        "n": st.integers(-1, 2**40) | json_values,
        "k": st.integers(-1, 64).map(lambda count: 32 * count) | json_values,
    }
)


@given(
    json_values
    | st.fixed_dictionaries(
        {
            "quant_method": st.just("cpu_int4") | json_values,
            "version": st.just(1) | json_values,
            "modules": st.dictionaries(st.text(max_size=8), modules | json_values) | json_values,
        }
    )
)
def test_no_quantization_config_raises_anything_else(raw: Any) -> None:
    try:
        parsed = parse_quantization_config(raw, Path("config.json"))
    except CheckpointError:
        return
    for name, module in parsed.items():
        assert module.tensors(name)


def test_dense_weights_of_other_types_are_refused_when_asked_for(tmp_path: Path) -> None:
    specs = {"a.weight": ("F8_E4M3", (2, 32)), "b.weight": ("F32", (2, 2, 2))}
    (tmp_path / "config.json").write_text("{}")
    with SafetensorsWriter(tmp_path / "model.safetensors", specs) as writer:
        for name, entry in writer.entries.items():
            writer.write(name, 0, np.zeros(entry.nbytes, np.uint8))
        writer.finish()
    with open_checkpoint(tmp_path) as checkpoint:
        with pytest.raises(CheckpointError, match="dtype is F8_E4M3"):
            checkpoint.linear("a")
        with pytest.raises(CheckpointError, match="dtype is F8_E4M3"):
            checkpoint.array("a.weight")
        with pytest.raises(CheckpointError, match="two dims"):
            checkpoint.linear("b")
