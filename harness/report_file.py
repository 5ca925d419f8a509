"""Where a report came from, and the file it is kept in: never overwritten, never edited."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.machine import describe, git_state

REPOSITORY = Path(__file__).resolve().parent.parent
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")


def provenance(kind: str, schema_version: int, name: str, note: str) -> dict[str, Any]:
    """Return the fields every report begins with: what, when, on which code and machine."""
    commit, changed = git_state(REPOSITORY)
    machine = describe()
    return {
        "schema_version": schema_version,
        "kind": kind,
        "name": name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "note": note,
        "git_commit": commit,
        "git_changed": changed,
        "machine_slug": machine.slug,
        "machine": asdict(machine),
    }


def version() -> str:
    """Return commit and state of this work tree, for example "1f2e3d+changes"."""
    commit, changed = git_state(REPOSITORY)
    return commit + ("+changes" if changed else "")


def report_path(results: Path, name: str) -> Path:
    """Return results/<machine>/servers/<name>.json.

    Raises:
        ValueError: if the name has other characters than letters, digits, dots and dashes.
        FileExistsError: if there is such a report.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"name is {name!r}, must be letters, digits, dots and dashes")
    path = results / describe().slug / "servers" / f"{name}.json"
    if path.exists():
        raise FileExistsError(f"{path} exists; results are not overwritten")
    return path


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write a report, its folder included; refuses to replace one (FileExistsError)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(json.dumps(report, indent=1) + "\n")
