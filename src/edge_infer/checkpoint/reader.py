"""Opening a checkpoint folder: cpu_int4 or a plain Hugging Face one, mapped, without copies."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from edge_infer.checkpoint.errors import CheckpointError, fail
from edge_infer.checkpoint.files import read_json_object, refuse_pickle
from edge_infer.checkpoint.format import (
    DENSE_DTYPES,
    LinearTensor,
    ModuleFormat,
    parse_quantization_config,
)
from edge_infer.checkpoint.packing import bf16_to_f32
from edge_infer.checkpoint.safetensors_file import SafetensorsFile, TensorEntry
from edge_infer.checkpoint.shards import open_shards

_PACKED_SUFFIXES = (".qweight", ".scales", ".zeros", ".mins")


@dataclass(frozen=True)
class TensorReport:
    """One row of a listing: a quantized module as a whole, or one stored tensor.

    `format` is ``int4``, ``int8`` or the stored type in lower case; `shape` the true shape;
    `group_size` is 0 and `form` empty for what is not quantized.
    """

    name: str
    format: str
    form: str
    scale_type: str
    group_size: int
    shape: tuple[int, ...]
    nbytes: int
    file: str

    @property
    def elements(self) -> int:
        """Number of true weights."""
        count = 1
        for dim in self.shape:
            count *= dim
        return count

    @property
    def bits_per_weight(self) -> float:
        """Stored bits over true weights."""
        return self.nbytes * 8 / max(1, self.elements)


class Checkpoint:
    """An open checkpoint. Arrays it returns are views of read-only mappings unless said otherwise.

    `config` and `generation_config` are the parsed JSON files, the latter empty when absent.
    Truncating a file while it is open ends the process (SIGBUS), as for any mapping.
    """

    def __init__(self, path: Path) -> None:
        """Map and check every file of the folder; raise CheckpointError for what is wrong."""
        self.path = path
        self.config: dict[str, Any] = read_json_object(path / "config.json")
        generation = path / "generation_config.json"
        self.generation_config: dict[str, Any] = (
            read_json_object(generation) if generation.is_file() else {}
        )
        self.modules: dict[str, ModuleFormat] = {}
        if self.config.get("quantization_config") is not None:
            self.modules = parse_quantization_config(
                self.config["quantization_config"], path / "config.json"
            )
        self._files = open_shards(path)
        self._owner = {name: file for file in self._files for name in file.entries}
        self._check_modules()

    @property
    def files(self) -> list[Path]:
        """The mapped weight files."""
        return [file.path for file in self._files]

    def has_linear(self, name: str) -> bool:
        """Whether `name` (without ``.weight``) is a quantized module or a dense 2-D weight."""
        if name in self.modules:
            return True
        owner = self._owner.get(f"{name}.weight")
        return owner is not None and len(owner.entries[f"{name}.weight"].shape) == 2

    def linear(self, name: str) -> LinearTensor:
        """The weight of linear or embedding `name`, quantized or dense, as views."""
        module = self.modules.get(name)
        if module is None:
            return self._dense(name)
        offsets = {"zero": f"{name}.zeros", "min": f"{name}.mins"}.get(module.form)
        return LinearTensor(
            name=name,
            format=module.format,
            form=module.form,
            scale_type=module.scale_type,
            group_size=module.group_size,
            n=module.n,
            k=module.k,
            data=self._view(f"{name}.qweight"),
            scales=self._view(f"{name}.scales").view(np.uint16),
            offsets=None if offsets is None else _as_bits(self._view(offsets)),
        )

    def has(self, name: str) -> bool:
        """Whether the files hold a tensor of this full name."""
        return name in self._owner

    def array(self, name: str) -> np.ndarray:
        """A float32 copy of a small tensor (norm, bias) by its full name."""
        entry = self._entry(name)
        view = self._view(name)
        if entry.dtype == "BF16":
            return bf16_to_f32(view)
        if entry.dtype not in ("F16", "F32", "F64"):
            raise fail(
                self._owner[name].path, f"dtype is {entry.dtype}, expected a float", tensor=name
            )
        return view.astype(np.float32)

    def require(self, linears: Iterable[str], arrays: Iterable[str] = ()) -> None:
        """Raise one error that lists everything of `linears` and `arrays` that is missing."""
        missing = [name for name in linears if not self.has_linear(name)]
        missing += [name for name in arrays if not self.has(name)]
        if missing:
            raise fail(self.path, f"{len(missing)} tensors are missing: {', '.join(missing)}")

    def entries(self) -> list[TensorReport]:
        """What is stored, a row per quantized module or tensor, sorted by name."""
        rows = [self._module_row(name, module) for name, module in self.modules.items()]
        packed = {tensor for name, mod in self.modules.items() for tensor in mod.tensors(name)}
        for name, owner in self._owner.items():
            if name not in packed:
                entry = owner.entries[name]
                kind = entry.dtype.lower()
                rows.append(
                    TensorReport(name, kind, "", "", 0, entry.shape, entry.nbytes, owner.path.name)
                )
        return sorted(rows, key=lambda row: row.name)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The true shape of every tensor by its full name, packed ones as if they were dense."""
        packed = {tensor for name, mod in self.modules.items() for tensor in mod.tensors(name)}
        shapes = {
            name: tuple(owner.entries[name].shape)
            for name, owner in self._owner.items()
            if name not in packed
        }
        return shapes | {f"{name}.weight": (m.n, m.k) for name, m in self.modules.items()}

    def close(self) -> None:
        """Drop the mappings; each lives on as long as an array of it does."""
        for file in self._files:
            file.close()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _entry(self, name: str) -> TensorEntry:
        owner = self._owner.get(name)
        if owner is None:
            raise fail(self.path, "is missing", tensor=name)
        return owner.entries[name]

    def _view(self, name: str) -> np.ndarray:
        self._entry(name)
        return self._owner[name].view(name)

    def _dense(self, name: str) -> LinearTensor:
        tensor = f"{name}.weight"
        entry = self._entry(tensor)
        path = self._owner[tensor].path
        if entry.dtype not in DENSE_DTYPES:
            allowed = ", ".join(DENSE_DTYPES)
            raise fail(
                path, f"dtype is {entry.dtype}, a linear needs one of {allowed}", tensor=tensor
            )
        if len(entry.shape) != 2:
            raise fail(path, f"shape is {list(entry.shape)}, a linear has two dims", tensor=tensor)
        view = self._view(tensor)
        if not view.flags.aligned:
            raise fail(
                path,
                f"begins at byte {entry.begin}, which is not aligned for {entry.dtype}: save the "
                "file again with a current safetensors, or convert it with edge-infer quantize",
                tensor=tensor,
            )
        n, k = entry.shape
        kind = DENSE_DTYPES[entry.dtype]
        return LinearTensor(name, kind, "symmetric", "f16", 0, n, k, view, None, None)

    def _check_modules(self) -> None:
        missing: list[str] = []
        for name, module in self.modules.items():
            for tensor, (dtype, shape) in module.tensors(name).items():
                owner = self._owner.get(tensor)
                if owner is None:
                    missing.append(tensor)
                else:
                    _check_packed(owner, tensor, dtype, shape)
            if f"{name}.weight" in self._owner:
                raise fail(self.path, "is stored both packed and as .weight", tensor=name)
        if missing:
            raise fail(self.path, f"{len(missing)} tensors are missing: {', '.join(missing)}")
        for tensor in self._owner:
            stem, dot, suffix = tensor.rpartition(".")
            if dot + suffix in _PACKED_SUFFIXES and stem not in self.modules:
                raise fail(
                    self.path,
                    "is packed but config.json has no quantization_config.modules entry for it",
                    tensor=tensor,
                )

    def _module_row(self, name: str, module: ModuleFormat) -> TensorReport:
        tensors = module.tensors(name)
        nbytes = sum(self._entry(tensor).nbytes for tensor in tensors)
        return TensorReport(
            name,
            module.format,
            module.form,
            module.scale_type,
            module.group_size,
            (module.n, module.k),
            nbytes,
            self._owner[f"{name}.qweight"].path.name,
        )


def _check_packed(owner: SafetensorsFile, name: str, dtype: str, shape: tuple[int, ...]) -> None:
    entry = owner.entries[name]
    if (entry.dtype, entry.shape) != (dtype, shape):
        raise fail(
            owner.path,
            f"is {entry.dtype} {list(entry.shape)}, config.json implies {dtype} {list(shape)}",
            tensor=name,
        )
    # Kernels load whole lines of qweight and vectors of 32 bytes of the rest.
    alignment = 64 if name.endswith(".qweight") else 2 if dtype != "U8" else 1
    if entry.begin % alignment:
        raise fail(
            owner.path,
            f"begins at byte {entry.begin}, not a multiple of {alignment}: the file was rewritten "
            "by another tool; convert the checkpoint again",
            tensor=name,
        )


def _as_bits(view: np.ndarray) -> np.ndarray:
    return view if view.dtype == np.uint8 else view.view(np.uint16)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a checkpoint folder (cpu_int4 or plain HF safetensors).

    Raises CheckpointError, also for a GGUF file, which must be converted first.
    """
    path = Path(path)
    refuse_pickle(path)
    if path.is_file():
        raise CheckpointError(
            f"{path}: is a file; convert it first: edge-infer quantize {path} DST"
        )
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such folder")
    return Checkpoint(path)
