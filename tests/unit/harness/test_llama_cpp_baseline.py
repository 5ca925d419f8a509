"""The llama.cpp baseline's own parts: patch, hash check, log reading, and the random model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from baselines.llama_cpp import build
from baselines.llama_cpp.read import LlamaBench, model_buffers
from harness.arm import ReadError, Workload

gguf = pytest.importorskip("gguf")

WORKLOAD = Workload(512, 128, (0,), 2, 1)
LOG = """load_tensors:          AMX model buffer size =    95.34 MiB
load_tensors:   CPU_Mapped model buffer size =    92.10 MiB
llama_kv_cache:        CPU KV buffer size =    11.25 MiB
load_tensors:   CPU_Mapped model buffer size =    1.00 MiB
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that looks as if the baseline had been built."""
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path))
    folder = build.cache_folder()
    (folder / "build" / "bin").mkdir(parents=True)
    (folder / "build" / "bin" / "llama-bench").write_text("")
    record = {"release": build.RELEASE, "native_features": ["AVX2"]}
    (folder / "build.json").write_text(json.dumps(record))
    return folder


def arm(folder: Path, flash_attention: bool = False, amx: bool = True) -> LlamaBench:
    model = folder / "model.gguf"
    model.write_bytes(b"GGUF")
    return LlamaBench(model, WORKLOAD, flash_attention, amx)


def output(flash_attention: int = 0) -> str:
    shared: dict[str, Any] = {"flash_attn": flash_attention, "type_k": "f16", "type_v": "f16"}
    return json.dumps(
        [
            {**shared, "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 150.0},
            {**shared, "n_prompt": 0, "n_gen": 128, "n_depth": 0, "avg_ts": 15.0},
        ]
    )


def test_barrier_is_added_once_before_the_load() -> None:
    text = "before\n" + build.AMX_LOAD + "after\n"
    patched = build.add_amx_barrier(text)
    lines = patched.splitlines()
    assert lines[1].strip().startswith("__asm__ volatile")
    assert '"m"(tc)' in lines[1]
    assert lines[2] == build.AMX_LOAD.rstrip("\n")
    assert build.add_amx_barrier(patched) == patched


@pytest.mark.parametrize("text", ["", build.AMX_LOAD * 2])
def test_an_unexpected_source_is_refused(text: str) -> None:
    with pytest.raises(build.BuildError, match="tile loads, expected 1"):
        build.add_amx_barrier(text)


def test_a_changed_sdist_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sdist").mkdir()
    (tmp_path / "sdist" / build.SDIST_NAME).write_bytes(b"something else")
    with pytest.raises(build.BuildError, match="SHA-256"):
        build.download(tmp_path)


def test_a_missing_build_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path))
    with pytest.raises(build.BuildError, match=r"run baselines/llama_cpp/build\.py"):
        build.executable("llama-bench")
    with pytest.raises(build.BuildError, match=r"build\.json is missing"):
        build.read_record()


def test_buffers_are_summed_by_type() -> None:
    assert model_buffers(LOG) == {"AMX": 95.34, "CPU_Mapped": pytest.approx(93.1)}


def test_llama_bench_is_read_with_its_proof(cache: Path) -> None:
    reading = arm(cache).read(output(), LOG)
    assert reading.speeds == {"pp512": 150.0, "tg128": 15.0}
    assert reading.proof["model_buffers_mib"]["AMX"] == 95.34
    assert reading.proof["kv_types"] == ["f16", "f16"]


def test_llama_bench_command(cache: Path) -> None:
    bench = arm(cache, flash_attention=True)
    assert bench.name == "llama.cpp-fa1"
    assert bench.command[0] == str(cache / "build" / "bin" / "llama-bench")
    assert bench.command[bench.command.index("-fa") + 1] == "1"
    assert bench.shown_command[:3] == ["llama-bench", "-m", "model.gguf"]
    assert str(cache) not in json.dumps([bench.shown_command, bench.about])


def test_llama_bench_without_proof_fails(cache: Path) -> None:
    with pytest.raises(ReadError, match="names no model buffer"):
        arm(cache, amx=False).read(output(), "")
    without_amx = LOG.replace("AMX", "CPU_REPACK")
    with pytest.raises(ReadError, match="this machine has AMX"):
        arm(cache).read(output(), without_amx)
    assert arm(cache, amx=False).read(output(), without_amx).speeds["tg128"] == 15.0


def test_llama_bench_must_run_the_setting_asked_for(cache: Path) -> None:
    with pytest.raises(ReadError, match="flash_attn is 1, asked for 0"):
        arm(cache).read(output(flash_attention=1), LOG)
    with pytest.raises(ReadError, match="no JSON"):
        arm(cache).read("Illegal instruction", LOG)


@pytest.mark.parametrize("embedding", ["Q6_K", "Q8_0"])
def test_random_model_has_the_shape_types_and_scale_it_says(tmp_path: Path, embedding: str) -> None:
    from baselines.llama_cpp import make_gguf

    shape = make_gguf.Shape("qwen3", 256, 512, 2, 4, 2, 128, 384, 1024, 1e6, 1e-6)
    path = tmp_path / "model.gguf"
    size = make_gguf.write(path, shape, embedding)
    assert size == path.stat().st_size
    assert list(tmp_path.iterdir()) == [path]
    reader = gguf.GGUFReader(path)
    assert reader.fields["tokenizer.ggml.model"].contents() == "none"
    assert reader.fields["qwen3.vocab_size"].contents() == 384
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == 2 + 11 * 2
    assert "output.weight" not in tensors
    expected = {
        "token_embd.weight": (embedding, [256, 384]),
        "blk.0.attn_q.weight": ("Q4_0", [256, 512]),
        "blk.1.attn_k.weight": ("Q4_0", [256, 256]),
        "blk.1.attn_output.weight": ("Q4_0", [512, 256]),
        "blk.1.ffn_down.weight": ("Q4_0", [512, 256]),
    }
    for name, (kind, dimensions) in expected.items():
        tensor = tensors[name]
        assert (tensor.tensor_type.name, list(tensor.shape)) == (kind, dimensions)
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        # 32,768 or more samples: the standard deviation is known to better than 2%.
        assert np.std(values[:128]) == pytest.approx(make_gguf.WEIGHT_STD, rel=0.03)
        assert np.abs(values).max() < 4 * make_gguf.WEIGHT_STD
        assert np.array_equal(values[:128], values[128:256])
    norm = tensors["blk.1.attn_q_norm.weight"]
    assert np.array_equal(norm.data, np.ones(128, dtype=np.float32))


def test_random_model_refuses_a_shape_it_cannot_tile(tmp_path: Path) -> None:
    from baselines.llama_cpp import make_gguf

    ragged = make_gguf.Shape("qwen3", 256, 512, 1, 4, 2, 128, 1000, 1024, 1e6, 1e-6)
    with pytest.raises(ValueError, match="1000 rows are not a multiple of 128"):
        make_gguf.write(tmp_path / "model.gguf", ragged)
    narrow = make_gguf.Shape("qwen3", 128, 512, 1, 4, 2, 128, 1024, 1024, 1e6, 1e-6)
    with pytest.raises(ValueError, match="128 columns are not a multiple of 256"):
        make_gguf.write(tmp_path / "model.gguf", narrow)
    assert list(tmp_path.iterdir()) == []


def test_random_model_memory_is_one_tile() -> None:
    from baselines.llama_cpp import make_gguf

    tensor = make_gguf.Tensor("x", gguf.GGMLQuantizationType.Q4_0, (128 * 1000, 2048))
    view = make_gguf.data(tensor, np.random.default_rng(0))
    assert view.nbytes == 128 * 1000 * 2048 // 32 * 18
    assert view.base is not None
    assert view.strides[0] == 0
