"""The engine under faults: whatever one request does, the others and the blocks survive."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from edge_infer import Engine, SamplingParams, _native
from edge_infer.checkpoint import CheckpointError
from edge_infer.engine.errors import EngineError

TinyModel = Callable[..., tuple[Path, Any]]


@pytest.fixture
def engine(tiny_model: TinyModel) -> Iterator[Engine]:
    path, _ = tiny_model("qwen3")
    with Engine(path, max_model_len=128, max_num_seqs=4) as engine:
        yield engine


PARAMS = SamplingParams(temperature=0.0, max_tokens=12)


def test_a_stream_dropped_in_a_cycle_never_deadlocks(engine: Engine) -> None:
    class Holder:
        pass

    holder = Holder()
    holder.stream = engine.stream([1, 2, 3], SamplingParams(max_tokens=100))  # type: ignore[attr-defined]
    next(holder.stream)  # type: ignore[attr-defined]
    holder.me = holder  # type: ignore[attr-defined]
    del holder
    # The collector runs inside the step, on the thread that holds the engine's lock.
    sample = engine.model.runner.raw_step

    def collecting(*args: Any) -> Any:
        gc.collect()
        return sample(*args)

    engine.model.runner.raw_step = collecting  # type: ignore[method-assign]
    done = threading.Thread(target=lambda: engine.generate([4, 5], PARAMS), daemon=True)
    done.start()
    done.join(20)
    assert not done.is_alive(), "the step waits for itself"
    assert engine.num_free_blocks == engine.model.plan.num_blocks


def test_one_requests_fault_is_its_own(engine: Engine) -> None:
    good = engine.stream([1, 2, 3], PARAMS)
    bad = engine.stream([7, 8], PARAMS)
    next(good)

    def broken(_logits: Any) -> Any:
        raise IndexError("made up")

    bad._sequence.sampler.sample = broken  # type: ignore[method-assign]
    tokens = [t for chunk in good for t in chunk.token_ids]
    assert len(tokens) == 11
    with pytest.raises(EngineError, match="made up"):
        list(bad)
    assert engine.num_free_blocks == engine.model.plan.num_blocks


def test_an_interrupted_step_loses_nothing(engine: Engine) -> None:
    alone = engine.generate([1, 2, 3], PARAMS).token_ids
    stream = engine.stream([1, 2, 3], PARAMS)
    tokens = list(next(stream).token_ids)
    sampler = stream._sequence.sampler
    sample, interrupted = sampler.sample, []

    def once(logits: Any) -> Any:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return sample(logits)

    sampler.sample = once  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    tokens += [t for chunk in stream for t in chunk.token_ids]
    assert tokens == alone


def test_numpy_prompts_and_late_requests(engine: Engine) -> None:
    assert (
        engine.generate(np.array([1, 2, 3]), PARAMS).token_ids
        == engine.generate([1, 2, 3], PARAMS).token_ids
    )
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.stream([1, 2, 3], PARAMS)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_key_value_heads", 1, "k_proj.weight.*configuration implies"),
        ("num_hidden_layers", 2, "tensors are not known"),
        ("num_hidden_layers", 4, "tensors are missing"),
        ("vocab_size", 1000, "embed_tokens.weight.*configuration implies"),
        ("intermediate_size", 64, "configuration implies"),
        ("architectures", [["a"]], "architectures"),
    ],
)
def test_a_config_that_does_not_describe_the_weights_is_refused(
    tiny_model: TinyModel, tmp_path: Path, field: str, value: Any, message: str
) -> None:
    source, _ = tiny_model("qwen3")
    for name in ("model.safetensors", "generation_config.json"):
        os.link(source / name, tmp_path / name)
    config = json.loads((source / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(CheckpointError, match=message):
        Engine(tmp_path)


def test_nan_weights_are_an_error_and_not_a_token(tiny_model: TinyModel, tmp_path: Path) -> None:
    source, _ = tiny_model("qwen3")
    tensors = safetensors.numpy.load_file(source / "model.safetensors")
    tensors["model.norm.weight"] = np.full_like(tensors["model.norm.weight"], np.nan)
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    with Engine(tmp_path, max_model_len=64) as engine, pytest.raises(RuntimeError, match="nan"):
        engine.generate([1, 2, 3], PARAMS)


def test_a_forked_child_is_told(engine: Engine) -> None:
    engine.generate([1, 2], PARAMS)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            engine.model.runner.raw_step(
                *[np.zeros(1, np.int32)] * 2,
                np.array([0, 1], np.int32),
                np.zeros((1, 1, 8), np.int32),
                np.zeros(0, np.int32),
            )
            os.write(write, b"ran")
        except RuntimeError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"fork" in os.read(read, 200)
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("tokens", [5, 7, 17, 33])
def test_no_kernel_reads_what_was_not_written(
    tiny_model: TinyModel, tmp_path: Path, isa: str, tokens: int
) -> None:
    # Whole tiles of few tokens: rows past the last one must never reach a result.
    from tests.parity.driver import Driver, load

    from edge_infer.checkpoint.convert import convert

    source, _ = tiny_model("llama")
    convert(source, tmp_path / "int4")
    ids = list(range(1, tokens + 1))
    for activations in ("int8", "bf16"):
        model = load(tmp_path / "int4", isa, activations=activations)
        first = Driver(model).logits(ids)
        Driver(model).logits(list(range(100, 196)))  # leave other values behind
        assert np.array_equal(Driver(model).logits(ids), first)
        assert np.isfinite(first).all()


def test_bad_native_programs_are_refused() -> None:
    with pytest.raises(ValueError, match="group 0"):
        _native.Program.prepared_bytes(_native.ActivationType.int8, 64, 0, 1)
    with pytest.raises(ValueError, match="threads must be between"):
        _native.ThreadPool(0, [])
