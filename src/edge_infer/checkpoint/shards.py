"""The weight files of a checkpoint folder: one safetensors file, or shards with an index."""

from pathlib import Path
from typing import Any

from edge_infer.checkpoint.errors import CheckpointError, fail
from edge_infer.checkpoint.files import read_json_object
from edge_infer.checkpoint.safetensors_file import SafetensorsFile
from edge_infer.checkpoint.writer import WEIGHTS_FILE

INDEX_FILE = "model.safetensors.index.json"


def open_shards(folder: Path) -> list[SafetensorsFile]:
    """Open every weight file of `folder`; tensor names are unique over them.

    With an index, exactly its files are opened and every tensor it maps must lie where it says.
    """
    index = folder / INDEX_FILE
    if index.is_file():
        return _open_indexed(folder, index)
    single = folder / WEIGHTS_FILE
    if single.is_file():
        return [SafetensorsFile(single)]
    pickles = sorted(path.name for path in folder.glob("*.bin")) + sorted(
        path.name for path in folder.glob("*.pt*")
    )
    if pickles:
        raise fail(
            folder,
            f"has no {WEIGHTS_FILE}, only pickle files ({', '.join(pickles[:3])}), which can run "
            "code and are never loaded: get the repository's safetensors files, or convert these "
            "with transformers' save_pretrained",
        )
    raise fail(folder, f"has neither {WEIGHTS_FILE} nor {INDEX_FILE}")


def _open_indexed(folder: Path, index: Path) -> list[SafetensorsFile]:
    weight_map = _checked_map(index, read_json_object(index).get("weight_map"))
    names = sorted(set(weight_map.values()))
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise fail(index, f"{len(absent)} of {len(names)} shards are missing: {', '.join(absent)}")
    files: list[SafetensorsFile] = []
    problems: list[str] = []
    for name in names:
        try:
            files.append(SafetensorsFile(folder / name))
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError("\n".join(problems))
    owner: dict[str, str] = {}
    for file in files:
        for tensor in file.entries:
            if tensor in owner:
                raise fail(file.path, f"is also in {owner[tensor]}", tensor=tensor)
            owner[tensor] = file.path.name
    missing = [name for name, shard in weight_map.items() if owner.get(name) != shard]
    if missing:
        raise fail(
            index, f"{len(missing)} tensors are not in the shard it names: {', '.join(missing)}"
        )
    return files


def _checked_map(index: Path, raw: Any) -> dict[str, str]:
    if not isinstance(raw, dict) or not raw:
        raise fail(index, "weight_map is missing or not an object")
    for tensor, name in raw.items():
        # Shards lie beside the index: a path that leads elsewhere is an attack or a mistake.
        if not isinstance(name, str) or Path(name).name != name or "\\" in name or "\0" in name:
            raise fail(index, f"weight_map names the file {name!r}", tensor=tensor)
        if not name.endswith(".safetensors"):
            raise fail(index, f"weight_map names {name!r}, not a safetensors file", tensor=tensor)
    return raw
