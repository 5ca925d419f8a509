"""`inspect` and `quantize` as a user calls them, and the report behind them."""

import json
from pathlib import Path

import gguf
import pytest
import typer
from checkpoint_samples import LLAMA, random_tensors, write_gguf, write_hf_folder
from typer.testing import CliRunner

from edge_infer.checkpoint.random_weights import write_random_checkpoint
from edge_infer.checkpoint.report import group_layers, inspect_model
from edge_infer.cli.inspect import inspect
from edge_infer.cli.quantize import quantize

app = typer.Typer()
app.command()(inspect)
app.command()(quantize)
run = CliRunner()


def test_report_counts_bytes_weights_and_bits(tmp_path: Path) -> None:
    path = write_random_checkpoint(LLAMA, tmp_path / "m", group_size=32)
    report = inspect_model(path)
    assert report.kind == "cpu_int4"
    up = next(row for row in report.rows if row.name == "model.layers.1.mlp.up_proj")
    assert (up.format, up.group_size, up.shape) == ("int4", 32, (96, 64))
    assert up.nbytes == 96 * 64 // 2 + 96 * 2 * 2
    assert up.bits_per_weight == 4.5
    # 50 rows of int8 in 64 padded ones: padding costs bits.
    head = next(row for row in report.rows if row.name == "lm_head")
    assert head.bits_per_weight == pytest.approx(8.5 * 64 / 50)
    assert report.nbytes == sum(row.nbytes for row in report.rows)
    assert report.weights == sum(row.elements for row in report.rows)
    assert sum(nbytes for _, nbytes in report.by_format().values()) == report.nbytes
    order = [row.name for row in report.rows if row.name.endswith("up_proj")]
    assert order == ["model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"]


def test_layers_are_joined_only_when_alike(tmp_path: Path) -> None:
    path = write_random_checkpoint({**LLAMA, "num_hidden_layers": 12}, tmp_path / "m")
    groups = {group.name: group for group in group_layers(inspect_model(path).rows)}
    assert groups["model.layers.*.mlp.up_proj"].count == 12
    assert groups["model.layers.*.mlp.up_proj"].nbytes == 12 * (96 * 64 // 2 + 96 * 2)
    rows = inspect_model(path).rows
    assert sum(group.nbytes for group in groups.values()) == sum(row.nbytes for row in rows)


def test_inspect_prints_a_table_and_json(tmp_path: Path) -> None:
    path = write_random_checkpoint(LLAMA, tmp_path / "m")
    result = run.invoke(app, ["inspect", str(path)])
    assert result.exit_code == 0
    assert "model.layers.* (2 layers)" in result.stdout
    assert "int4 sym g64" in result.stdout
    assert "bits per weight" in result.stdout
    full = run.invoke(app, ["inspect", str(path), "--all"])
    assert "model.layers.1.mlp.up_proj" in full.stdout
    data = json.loads(run.invoke(app, ["inspect", str(path), "--json"]).stdout)
    assert data["kind"] == "cpu_int4"
    assert data["bytes"] == sum(row["bytes"] for row in data["tensors"])
    assert sum(row["share"] for row in data["tensors"]) == pytest.approx(1)


def test_inspect_keeps_the_names_on_a_narrow_terminal(tmp_path: Path) -> None:
    path = write_random_checkpoint(LLAMA, tmp_path / "m")
    result = run.invoke(app, ["inspect", str(path)], env={"COLUMNS": "40"})
    first_words = [line.split()[0] for line in result.stdout.splitlines()]
    assert {"tensor", "mlp.up_proj", "model.embed_tokens"} <= set(first_words)
    assert "bpw" in result.stdout


def test_inspect_shows_stored_types_of_other_formats(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", LLAMA, gguf.GGMLQuantizationType.Q4_0)
    data = json.loads(run.invoke(app, ["inspect", str(tmp_path / "m.gguf"), "--json"]).stdout)
    assert data["kind"] == "gguf"
    rows = {row["name"]: row for row in data["tensors"]}
    assert rows["blk.0.attn_q.weight"]["format"] == "q4_0"
    assert rows["blk.0.attn_q.weight"]["bits_per_weight"] == 4.5
    write_hf_folder(tmp_path / "hf", LLAMA, random_tensors(LLAMA), shards=2)
    data = json.loads(run.invoke(app, ["inspect", str(tmp_path / "hf"), "--json"]).stdout)
    assert data["kind"] == "hf"
    assert data["formats"] == {"bf16": {"weights": data["weights"], "bytes": 2 * data["weights"]}}


def test_quantize_reports_what_it_did(tmp_path: Path) -> None:
    src = write_hf_folder(tmp_path / "src", LLAMA, random_tensors(LLAMA))
    arguments = ["quantize", str(src), str(tmp_path / "out"), "--group-size", "128"]
    result = run.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "16 of 21 tensors packed, 0 of them exactly" in result.stdout
    assert "group 32, as K = 96 is not a multiple of 128" in result.stdout
    assert run.invoke(app, ["inspect", str(tmp_path / "out")]).exit_code == 0
    again = run.invoke(app, arguments)
    assert again.exit_code == 1
    assert "--force" in again.stderr
    assert run.invoke(app, [*arguments, "--force"]).exit_code == 0


def test_errors_end_with_a_message_not_a_traceback(tmp_path: Path) -> None:
    for arguments in (["inspect", str(tmp_path)], ["quantize", str(tmp_path), str(tmp_path / "o")]):
        result = run.invoke(app, arguments)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: ")
        assert "config.json" in result.stderr
