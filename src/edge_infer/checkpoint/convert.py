"""The conversion of a source checkpoint to a cpu_int4 folder: `edge-infer quantize`."""

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from edge_infer.checkpoint.architectures import expected_tensors
from edge_infer.checkpoint.errors import CheckpointError, fail
from edge_infer.checkpoint.files import refuse_pickle, write_json
from edge_infer.checkpoint.format import ModuleFormat, quantization_config
from edge_infer.checkpoint.gguf_file import is_gguf
from edge_infer.checkpoint.importers.gguf import import_gguf
from edge_infer.checkpoint.importers.hf import import_hf
from edge_infer.checkpoint.pieces import MAX_THREADS, TensorResult, convert_tensor
from edge_infer.checkpoint.plan import QuantizeOptions, TensorPlan, plan_tensors
from edge_infer.checkpoint.sources import ImportedModel
from edge_infer.checkpoint.writer import WEIGHTS_FILE, SafetensorsWriter, new_folder

#: Called with (tensor name, source bytes done, source bytes in all), from the calling thread.
Progress = Callable[[str, int, int], None]


@dataclass
class ConversionReport:
    """The outcome of a conversion: sizes in bytes, time in seconds."""

    path: Path
    tensors: list[TensorResult] = field(default_factory=list)
    source_bytes: int = 0
    stored_bytes: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def lossy(self) -> bool:
        """Whether a tensor lost something, or there is a note to read."""
        return bool(self.notes) or any(t.error > 0 or t.note for t in self.tensors)

    def summary(self) -> str:
        """What a person wants to know after a conversion, notes about unusual tensors first."""
        lines = list(self.notes)
        noted: dict[str, list[str]] = {}
        for tensor in self.tensors:
            if tensor.note:
                noted.setdefault(tensor.note, []).append(tensor.name)
        for note, names in noted.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            lines.append(f"{names[0]}{more}: {note}")
        packed = [tensor for tensor in self.tensors if tensor.module is not None]
        exact = [tensor for tensor in packed if tensor.error == 0]
        rounded = [tensor for tensor in packed if tensor.error > 0]
        text = f"{len(packed)} of {len(self.tensors)} tensors packed, {len(exact)} of them exactly"
        if rounded:
            worst = max(rounded, key=lambda tensor: tensor.error)
            mean = sum(tensor.error for tensor in rounded) / len(rounded)
            text += f"; relative error mean {mean:.4f}, largest {worst.error:.4f} ({worst.name})"
        lines.append(text)
        lines.append(
            f"{self.path}: {self.source_bytes / 1e6:.1f} MB -> {self.stored_bytes / 1e6:.1f} MB "
            f"in {self.seconds:.1f} s"
        )
        return "\n".join(lines)


def open_source(path: Path) -> ImportedModel:
    """Open a GGUF file or an HF folder for conversion; CheckpointError when it is neither."""
    refuse_pickle(path)
    if path.is_dir():
        return import_hf(path)
    if path.is_file():
        return import_gguf(path)
    raise CheckpointError(f"{path}: no such file or folder")


def convert(
    src: str | Path,
    dst: str | Path,
    options: QuantizeOptions | None = None,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> ConversionReport:
    """Convert an HF folder or a GGUF file to the cpu_int4 folder `dst`.

    The folder appears whole or not at all; `force` replaces an earlier checkpoint. Raises
    CheckpointError for a source that cannot be read or a destination that cannot be written.
    """
    src, dst = Path(src), Path(dst).absolute()
    if dst.resolve() == src.resolve() or dst.resolve() in src.resolve().parents:
        raise fail(dst, f"would replace the source {src}")
    started = time.monotonic()
    model = open_source(src)
    expected = expected_tensors(model.config, src)
    plans = plan_tensors(model.tensors, expected, options or QuantizeOptions(), src)
    report = ConversionReport(dst, notes=list(model.notes))
    report.source_bytes = sum(plan.source.nbytes for plan in plans)
    with new_folder(dst, force=force) as folder:
        modules = _write_weights(folder, model, plans, report, progress)
        config = {**model.config, "quantization_config": quantization_config(modules)}
        write_json(folder / "config.json", config)
        if model.generation_config:
            write_json(folder / "generation_config.json", model.generation_config)
        for file in model.files:
            shutil.copyfile(file, folder / file.name)
        report.notes += _write_tokenizer(folder, model)
    report.seconds = time.monotonic() - started
    return report


def convert_gguf(
    path: str | Path, dst: str | Path, progress: Progress | None = None
) -> ConversionReport:
    """Convert a GGUF file with the default options; `dst` must not exist or be empty."""
    if not is_gguf(path):
        raise CheckpointError(f"{path}: not a GGUF file")
    return convert(path, dst, progress=progress)


def _write_tokenizer(folder: Path, model: ImportedModel) -> list[str]:
    metadata = model.gguf_metadata
    if metadata is None:
        return []
    if metadata.get("tokenizer.ggml.model", "none") == "none":
        return ["the GGUF file holds no tokenizer: none was written"]
    from edge_infer.text.gguf_tokenizer import tokenizer_from_gguf

    tokenizer_from_gguf(metadata, folder)
    return []


def _write_weights(
    folder: Path,
    model: ImportedModel,
    plans: list[TensorPlan],
    report: ConversionReport,
    progress: Progress | None,
) -> dict[str, ModuleFormat]:
    tensors = {name: spec for plan in plans for name, spec in plan.tensors().items()}
    metadata = {"source": model.origin.name}
    if model.licence:
        metadata["license"] = model.licence
    modules: dict[str, ModuleFormat] = {}
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(plan.name, done, report.source_bytes)

    threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
    with (
        SafetensorsWriter(folder / WEIGHTS_FILE, tensors, metadata) as writer,
        ThreadPoolExecutor(threads) as pool,
    ):
        for plan in plans:
            result = convert_tensor(writer, plan, model.origin, advance, pool)
            report.tensors.append(result)
            if result.module is not None:
                modules[plan.name] = result.module
        writer.finish()
        report.stored_bytes = sum(entry.nbytes for entry in writer.entries.values())
    return modules
