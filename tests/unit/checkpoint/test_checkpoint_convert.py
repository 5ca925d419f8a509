"""The conversion pipeline: choices per tensor, files carried over, failures that leave nothing."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_samples import LLAMA, QWEN3, SPARK, random_tensors, write_hf_folder
from safetensors import safe_open

from edge_infer.checkpoint import CheckpointError, dequantize, open_checkpoint
from edge_infer.checkpoint.convert import convert, convert_gguf
from edge_infer.checkpoint.pieces import pieces
from edge_infer.checkpoint.plan import QuantizeOptions
from edge_infer.checkpoint.writer import new_folder


@pytest.mark.parametrize("config", [LLAMA, QWEN3, SPARK])
@pytest.mark.parametrize("shards", [1, 3])
def test_hf_folder_becomes_a_readable_checkpoint(
    tmp_path: Path, config: dict[str, Any], shards: int
) -> None:
    tensors = random_tensors(config)
    write_hf_folder(tmp_path / "src", config, tensors, shards)
    seen: list[tuple[str, int, int]] = []
    report = convert(tmp_path / "src", tmp_path / "out", progress=lambda *args: seen.append(args))
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert seen[-1][1:] == (total, total)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert report.source_bytes == total
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {key: written[key] for key in config} == config
    with open_checkpoint(tmp_path / "out") as checkpoint:
        for name, tensor in tensors.items():
            if tensor.ndim == 1:
                np.testing.assert_array_equal(checkpoint.array(name), tensor.float().numpy())
                continue
            linear = checkpoint.linear(name.removesuffix(".weight"))
            expected = tensor.float().numpy()
            error = np.linalg.norm(dequantize(linear) - expected) / np.linalg.norm(expected)
            if "g_proj" in name or linear.k % 32:
                assert linear.format == "bf16"
                assert error == 0
            elif "embed" in name or "lm_head" in name:
                assert (linear.format, linear.group_size) == ("int8", 32)
                assert error < 0.01
            else:
                assert (linear.format, linear.form) == ("int4", "symmetric")
                largest = next(size for size in (128, 64, 32) if linear.k % size == 0)
                assert linear.group_size == largest
                assert error < 0.12
        stored = sum(row.nbytes for row in checkpoint.entries())
    assert report.stored_bytes == stored
    with safe_open(tmp_path / "out" / "model.safetensors", framework="np") as file:
        assert "model.layers.0.mlp.up_proj.qweight" in file.keys()  # noqa: SIM118


def test_options_choose_group_form_scales_and_head(tmp_path: Path) -> None:
    write_hf_folder(tmp_path / "src", LLAMA, random_tensors(LLAMA))
    options = QuantizeOptions(group_size=32, form="min", scale_type="bf16", head_format="int4")
    report = convert(tmp_path / "src", tmp_path / "out", options)
    with open_checkpoint(tmp_path / "out") as checkpoint:
        for name in ("lm_head", "model.layers.0.mlp.down_proj"):
            linear = checkpoint.linear(name)
            assert (linear.format, linear.form) == ("int4", "min")
            assert (linear.group_size, linear.scale_type) == (32, "bf16")
    measured = {tensor.name: tensor.error for tensor in report.tensors}
    assert 0.02 < measured["model.layers.0.mlp.down_proj"] < 0.1
    convert(tmp_path / "src", tmp_path / "kept", QuantizeOptions(head_format="keep"))
    with open_checkpoint(tmp_path / "kept") as checkpoint:
        assert checkpoint.linear("lm_head").format == "bf16"


@pytest.mark.parametrize(
    "options",
    [
        QuantizeOptions(group_size=48),
        QuantizeOptions(form="zero"),
        QuantizeOptions(scale_type="f32"),
        QuantizeOptions(head_format="int2"),
        QuantizeOptions(wide_format=""),
    ],
)
def test_unknown_options_are_refused(tmp_path: Path, options: QuantizeOptions) -> None:
    write_hf_folder(tmp_path / "src", LLAMA, random_tensors(LLAMA))
    with pytest.raises(CheckpointError, match="expected one of"):
        convert(tmp_path / "src", tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


def test_reported_error_is_the_error_of_what_was_written(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA, torch.float32)
    write_hf_folder(tmp_path / "src", LLAMA, tensors)
    report = convert(tmp_path / "src", tmp_path / "out")
    with open_checkpoint(tmp_path / "out") as checkpoint:
        for result in report.tensors:
            if result.module is None:
                continue
            expected = tensors[f"{result.name}.weight"].numpy()
            lost = dequantize(checkpoint.linear(result.name)) - expected
            true = np.linalg.norm(lost) / np.linalg.norm(expected)
            assert result.error == pytest.approx(true, rel=1e-4)


def test_scales_that_f16_cannot_hold_become_bf16_for_that_tensor(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    big, small = "model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"
    tensors[f"{big}.weight"] *= 1e8
    tensors[f"{small}.weight"] *= 1e-6
    write_hf_folder(tmp_path / "src", LLAMA, tensors)
    report = convert(tmp_path / "src", tmp_path / "out")
    notes = {tensor.name: tensor.note for tensor in report.tensors if "bf16" in tensor.note}
    assert set(notes) == {big, small}
    assert "too large for f16" in notes[big]
    assert "too small for f16" in notes[small]
    with open_checkpoint(tmp_path / "out") as checkpoint:
        for name in (big, small):
            linear = checkpoint.linear(name)
            assert linear.scale_type == "bf16"
            expected = tensors[f"{name}.weight"].float().numpy()
            error = np.linalg.norm(dequantize(linear) - expected) / np.linalg.norm(expected)
            assert error < 0.12
        assert checkpoint.linear("model.layers.0.mlp.gate_proj").scale_type == "f16"


def test_progress_is_right_after_a_tensor_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = random_tensors(LLAMA)
    tensors["model.layers.0.mlp.up_proj.weight"][90] *= 1e8  # in the second of two pieces
    src = write_hf_folder(tmp_path / "src", LLAMA, tensors)
    monkeypatch.setattr(pieces, "__defaults__", (64 * 64,))
    seen: list[int] = []
    report = convert(src, tmp_path / "out", progress=lambda _, done, __: seen.append(done))
    assert any("too large for f16" in tensor.note for tensor in report.tensors)
    assert seen != sorted(seen)  # it went back once
    assert seen[-1] == report.source_bytes


def test_a_stored_but_tied_head_is_left_out_and_said(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    write_hf_folder(tmp_path / "src", {**LLAMA, "tie_word_embeddings": True}, tensors)
    report = convert(tmp_path / "src", tmp_path / "out")
    assert any("tied" in note for note in report.notes)
    with open_checkpoint(tmp_path / "out") as checkpoint:
        assert not checkpoint.has_linear("lm_head")


def test_tokenizer_and_licence_files_are_carried_over(tmp_path: Path) -> None:
    src = write_hf_folder(tmp_path / "src", LLAMA, random_tensors(LLAMA))
    carried = ["tokenizer.json", "tokenizer_config.json", "LICENSE", "LICENSE.txt", "NOTICE"]
    for name in [*carried, "pytorch_model.bin", "train.py"]:
        (src / name).write_text(name)
    (src / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    convert(src, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {*carried, "config.json", "generation_config.json", "model.safetensors"}
    for name in carried:
        assert (tmp_path / "out" / name).read_text() == name
    with open_checkpoint(tmp_path / "out") as checkpoint:
        assert checkpoint.generation_config == {"eos_token_id": [1, 2]}


def test_missing_unknown_and_misshapen_tensors(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    for name in ("model.norm.weight", "model.layers.1.mlp.up_proj.weight"):
        del tensors[name]
    write_hf_folder(tmp_path / "a", LLAMA, tensors)
    with pytest.raises(CheckpointError, match=r"2 tensors .* model\.layers\.1.*, model\.norm"):
        convert(tmp_path / "a", tmp_path / "out")
    tensors = random_tensors(LLAMA)
    tensors["model.layers.0.rotary_emb.inv_freq"] = torch.ones(4)  # derived: may be ignored
    tensors["model.layers.0.mlp.router.weight"] = torch.ones(4, 4)
    write_hf_folder(tmp_path / "b", LLAMA, tensors)
    with pytest.raises(CheckpointError, match=r"1 tensors are not known: .*router\.weight"):
        convert(tmp_path / "b", tmp_path / "out")
    del tensors["model.layers.0.mlp.router.weight"]
    write_hf_folder(tmp_path / "c", {**LLAMA, "vocab_size": 51}, tensors)
    with pytest.raises(CheckpointError, match=r"\[50, 64\], the configuration implies \[51, 64\]"):
        convert(tmp_path / "c", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "known are: LlamaForCausalLM"),
        ({"architectures": None}, "architectures is None"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"vocab_size": None}, "vocab_size is None"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quant_method is 'gptq'"),
        ({"quantization_config": {"quant_method": "cpu_int4"}}, "quantized already"),
    ],
)
def test_configurations_that_cannot_be_converted(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write_hf_folder(tmp_path / "src", {**LLAMA, **change}, random_tensors(LLAMA))
    with pytest.raises(CheckpointError, match=message):
        convert(tmp_path / "src", tmp_path / "out")


def test_a_failure_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")
    write_hf_folder(tmp_path / "src", LLAMA, tensors)
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj\.weight.*not finite"):
        convert(tmp_path / "src", tmp_path / "out")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    write_hf_folder(tmp_path / "src", LLAMA, random_tensors(LLAMA))
    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "src", tmp_path / "out", progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


def test_an_existing_destination_is_kept_unless_forced(tmp_path: Path) -> None:
    src = write_hf_folder(tmp_path / "src", LLAMA, random_tensors(LLAMA))
    out = tmp_path / "out"
    out.mkdir()
    convert(src, out)  # an empty folder may be filled
    before = (out / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="--force"):
        convert(src, out, QuantizeOptions(form="min"))
    assert (out / "model.safetensors").read_bytes() == before
    old_inode = (out / "config.json").stat().st_ino
    convert(src, out, QuantizeOptions(form="min"), force=True)
    assert (out / "config.json").stat().st_ino != old_inode
    with open_checkpoint(out) as checkpoint:
        assert checkpoint.linear("model.layers.0.mlp.up_proj").form == "min"
    assert {path.name for path in tmp_path.iterdir()} == {"src", "out"}


def test_force_never_replaces_what_is_no_checkpoint(tmp_path: Path) -> None:
    src = write_hf_folder(tmp_path / "a" / "src", LLAMA, random_tensors(LLAMA))
    home = tmp_path / "home"
    home.mkdir()
    (home / "letter.txt").write_text("dear")
    with pytest.raises(CheckpointError, match="this is none"):
        convert(src, home, force=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="not a folder"):
        convert(src, tmp_path / "file", force=True)
    for destination in (src, src.parent):
        with pytest.raises(CheckpointError, match="would replace the source"):
            convert(src, destination, force=True)
    assert (home / "letter.txt").read_text() == "dear"
    assert (src / "model.safetensors").is_file()


def test_a_folder_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    def write_both() -> None:
        with new_folder(tmp_path / "out") as folder:
            (folder / "x").write_text("ours")
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "y").write_text("theirs")

    with pytest.raises(CheckpointError, match="not empty"):
        write_both()
    assert (tmp_path / "out" / "y").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_sources_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        convert(tmp_path / "absent", tmp_path / "out")
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04")
    with pytest.raises(CheckpointError, match="never loaded"):
        convert(tmp_path / "model.pt", tmp_path / "out")
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        convert_gguf(tmp_path / "model.pt", tmp_path / "out")


@pytest.mark.parametrize("shape", [(1, 1), (16, 8), (50, 64), (33, 4096), (40, 40_000), (3, 0)])
def test_pieces_cover_every_weight_once(shape: tuple[int, int]) -> None:
    limit = 1 << 14
    covered = np.zeros(shape, dtype=np.uint8)
    for r0, r1, c0, c1 in pieces(*shape, limit=limit):
        covered[r0:r1, c0:c1] += 1
        assert r0 % 16 == 0
        assert c0 % 256 == 0
        assert (r1 - r0) * (c1 - c0) <= max(limit, 16 * 256)
    assert (covered == 1).all()


def test_rows_longer_than_a_piece_are_cut_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = random_tensors({**LLAMA, "intermediate_size": 1024})
    src = write_hf_folder(tmp_path / "src", {**LLAMA, "intermediate_size": 1024}, tensors)
    options = QuantizeOptions(form="min", head_format="keep")
    convert(src, tmp_path / "whole", options)
    monkeypatch.setattr(pieces, "__defaults__", (16 * 256,))
    convert(src, tmp_path / "cut", options)
    whole, cut = (tmp_path / name / "model.safetensors" for name in ("whole", "cut"))
    assert whole.read_bytes() == cut.read_bytes()


def _killed_while_writing(dst: Path) -> None:
    """Begin `dst` in another process and end that process as SIGKILL does."""
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from edge_infer.checkpoint.writer import new_folder\n"
        "with new_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'model.safetensors').write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(dst)], check=False)
    assert done.returncode == -signal.SIGKILL


def test_what_a_killed_conversion_left_is_removed_by_the_next(tmp_path: Path) -> None:
    dst = tmp_path / "out"
    _killed_while_writing(dst)
    _killed_while_writing(tmp_path / "out.other")
    assert len(list(tmp_path.glob(".out.*.tmp"))) == 2
    with new_folder(dst) as folder:
        (folder / "file").write_text("new")
    assert [path.name for path in dst.iterdir()] == ["file"]
    # that of another destination is not touched
    assert [path.name.split(".")[2] for path in tmp_path.glob(".*")] == ["other"]


def test_a_conversion_under_way_keeps_its_folder(tmp_path: Path) -> None:
    dst = tmp_path / "out"
    with new_folder(dst, force=True) as first:
        (first / "config.json").write_text("first")
        with new_folder(dst) as second:
            (second / "config.json").write_text("second")
            (second / "model.safetensors").write_text("second")
        assert (first / "config.json").read_text() == "first"
    assert (dst / "config.json").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_checkpoint_moved_away_by_a_killed_conversion_comes_back(tmp_path: Path) -> None:
    dst, old = tmp_path / "out", tmp_path / ".out.abcdefgh.old"
    old.mkdir()
    (old / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="not empty"), new_folder(dst):
        pass
    assert (dst / "config.json").exists()
    assert not old.exists()
    dst.rename(old)
    dst.mkdir()  # the new one was in place already
    with new_folder(dst):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not any(dst.iterdir())
