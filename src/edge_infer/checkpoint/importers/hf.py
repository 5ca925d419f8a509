"""Importing an unquantized Hugging Face folder: safetensors, single or sharded."""

from pathlib import Path

import numpy as np

from edge_infer.checkpoint.architectures import expected_tensors
from edge_infer.checkpoint.errors import fail
from edge_infer.checkpoint.files import read_json_object
from edge_infer.checkpoint.importers.names import check_names
from edge_infer.checkpoint.safetensors_file import SafetensorsFile
from edge_infer.checkpoint.shards import open_shards
from edge_infer.checkpoint.sources import DenseSource, ImportedModel, SourceTensor

_FLOATS = ("BF16", "F16", "F32", "F64")
_CARRIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
)
_LEGAL_PREFIXES = ("license", "licence", "notice", "copying", "use_policy")


def import_hf(folder: Path) -> ImportedModel:
    """Open an HF folder as an :class:`ImportedModel`; CheckpointError when it cannot be."""
    config_path = folder / "config.json"
    config = read_json_object(config_path)
    quantization = config.pop("quantization_config", None)
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise fail(
            config_path,
            f"quantization_config.quant_method is {method!r}: the checkpoint is quantized already, "
            "and importing quantized HF checkpoints is not supported yet; start from the "
            "unquantized one",
        )
    expected = expected_tensors(config, config_path)
    files = open_shards(folder)
    stored = {name: file for file in files for name in file.entries}
    sources: dict[str, SourceTensor] = {name: _source(file, name) for name, file in stored.items()}
    notes = []
    if "lm_head.weight" in sources and "lm_head.weight" not in expected:
        notes.append("lm_head.weight is stored but tied to the embedding: left out")
    generation = folder / "generation_config.json"
    return ImportedModel(
        origin=folder,
        config=config,
        generation_config=read_json_object(generation) if generation.is_file() else {},
        tensors=check_names(sources, expected, folder),
        files=_carried(folder),
        notes=notes,
    )


def _source(file: SafetensorsFile, name: str) -> SourceTensor:
    entry = file.entries[name]
    if entry.dtype not in _FLOATS:
        allowed = ", ".join(_FLOATS)
        raise fail(file.path, f"dtype is {entry.dtype}, expected one of {allowed}", tensor=name)
    view: np.ndarray = file.view(name)
    matrix = view if view.ndim == 2 else view.reshape(-1, 1)
    return DenseSource(name, entry.dtype, entry.shape, matrix)


def _carried(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_file()
        and (path.name in _CARRIED or path.name.lower().startswith(_LEGAL_PREFIXES))
    ]
