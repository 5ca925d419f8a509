"""From what a user calls a model to a folder that can be opened."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edge_infer.checkpoint.convert import convert_gguf
from edge_infer.checkpoint.files import damage_hint
from edge_infer.checkpoint.format import FORMAT_VERSION
from edge_infer.checkpoint.gguf_file import is_gguf
from edge_infer.hub.builtin import BUILTIN_MODELS
from edge_infer.hub.cache import (
    cache_folder,
    fingerprint,
    lock,
    make_folder,
    require_space,
    safe_name,
)
from edge_infer.hub.errors import ModelSourceError
from edge_infer.hub.progress import byte_progress

Kind = Literal["folder", "gguf", "hub", "builtin"]


@dataclass(frozen=True)
class ResolvedModel:
    """A model on this machine.

    Attributes:
        path: a folder with config.json and weights.
        origin: where it came from, for people: a path, a hub id with its commit, or a name.
    """

    path: Path
    kind: Kind
    origin: str


def resolve_model(
    model: str,
    *,
    revision: str | None = None,
    cache_dir: Path | None = None,
    offline: bool = False,
    progress: bool = True,
) -> ResolvedModel:
    """Find MODEL: a folder, a GGUF file, a built-in name or a hub id `org/name`, in this order.

    A GGUF file is converted once into the cache, a hub model downloaded once into the hub's own
    cache (both under `cache_dir` when it is given). `offline` uses what is there already.
    `progress` shows bars on a terminal.

    Raises ModelSourceError when the model cannot be found or fetched, CheckpointError when a GGUF
    file cannot be converted.
    """
    if not model.strip():
        raise ModelSourceError("the model is empty: give a folder, a GGUF file, a hub id or a name")
    path = Path(model).expanduser()
    on_hub = not path.exists() and model.lower() not in BUILTIN_MODELS
    if revision is not None and not on_hub:
        raise ModelSourceError(f"revision {revision!r} is for hub ids only, and {model!r} is none")
    if path.is_dir():
        return ResolvedModel(_checked_folder(path), "folder", str(path))
    if path.exists():
        return ResolvedModel(_converted(path, path.stem, cache_dir, progress), "gguf", str(path))
    builtin = BUILTIN_MODELS.get(model.lower())
    if builtin is not None:
        folder = _converted(builtin.path(), builtin.name, cache_dir, progress)
        return ResolvedModel(folder, "builtin", f"{builtin.name} ({builtin.requirement})")
    _refuse_other_names(model)
    from edge_infer.hub.download import download_snapshot  # huggingface_hub: slow to import

    folder = download_snapshot(
        model, revision=revision, cache_dir=cache_dir, offline=offline, progress=progress
    )
    return ResolvedModel(folder, "hub", f"{model}@{folder.name}")


def model_source(model: str, *, progress: bool = True) -> Path:
    """The file or folder that MODEL names, as it is: a GGUF file is not converted.

    Raises ModelSourceError when it cannot be found or fetched.
    """
    path = Path(model).expanduser()
    builtin = BUILTIN_MODELS.get(model.lower())
    if path.exists() or (builtin is None and (path.suffix == ".gguf" or path.is_absolute())):
        return path
    return builtin.path() if builtin is not None else resolve_model(model, progress=progress).path


def _checked_folder(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path
    ggufs = sorted(file.name for file in path.glob("*.gguf"))
    hint = f"; it holds {ggufs[0]}: give the path of that file" if ggufs else ""
    raise ModelSourceError(f"{path}: the folder has no config.json{hint}")


def _refuse_other_names(model: str) -> None:
    """Raise for what can be no hub id, saying what it looks like."""
    if model.startswith(("/", ".", "~")) or model.count("/") > 1 or model.endswith(".gguf"):
        raise ModelSourceError(f"{model}: no such file or folder")
    if "/" not in model:
        names = ", ".join(sorted(BUILTIN_MODELS))
        raise ModelSourceError(
            f"{model!r} is no file or folder here and no built-in model ({names}); "
            "a model of the hub is named org/name"
        )


def _converted(gguf: Path, name: str, cache_dir: Path | None, progress: bool) -> Path:
    """The cached conversion of a GGUF file, made when there is none."""
    if not gguf.is_file():  # opening a pipe would wait for its writer
        raise ModelSourceError(f"{gguf}: neither a folder nor a regular file")
    if not is_gguf(gguf):
        with gguf.open("rb") as file:
            hint = damage_hint(file.read(512))
        raise ModelSourceError(f"{gguf}: not a GGUF file{f': {hint}' if hint else ''}")
    models = cache_folder(cache_dir) / "models"
    folder = models / f"{safe_name(name)}-{fingerprint(gguf)}-v{FORMAT_VERSION}"
    if (folder / "config.json").is_file():
        return folder
    make_folder(models)
    with lock(models / f".{folder.name}.lock"):
        if (folder / "config.json").is_file():
            return folder  # made by the process that held the lock
        require_space(models, gguf.stat().st_size, f"the conversion of {gguf.name}")
        with byte_progress(f"converting {gguf.name}", progress) as show:
            report = convert_gguf(
                gguf, folder, progress=lambda _name, done, total: show(done, total)
            )
        if progress and report.lossy:
            print(report.summary(), file=sys.stderr)
    return folder
