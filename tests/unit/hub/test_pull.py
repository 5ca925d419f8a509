from pathlib import Path

import pytest
import typer
from fake_hub import FakeHub
from typer.testing import CliRunner

from edge_infer.cli.pull import pull
from edge_infer.hub import download


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    monkeypatch.setenv("EDGE_INFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    app = typer.Typer()
    app.command()(pull)
    return app


@pytest.mark.usefixtures("hub")
def test_pull_says_where_and_how_large(app: typer.Typer, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["org/tiny"])
    assert result.exit_code == 0
    assert str(tmp_path / "hub") in result.stdout
    assert "(1.0 MB)" in result.stdout
    assert (tmp_path / "cache/verified").is_dir()


def test_a_refusal_is_one_line(hub: FakeHub, app: typer.Typer) -> None:
    hub.statuses["/api/"] = (403, "GatedRepo")
    result = CliRunner().invoke(app, ["org/tiny"])
    assert result.exit_code == 1
    assert "error:" in result.stderr
    assert "gated" in result.stderr
    assert "Traceback" not in result.output
