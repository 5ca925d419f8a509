"""What a checkpoint stores, tensor by tensor: the data behind `edge-infer inspect`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_infer.checkpoint.gguf_file import GgufFile, is_gguf
from edge_infer.checkpoint.reader import TensorReport, open_checkpoint

_LAYER = re.compile(r"(^|\.)(layers|blk)\.(\d+)\.")


@dataclass(frozen=True)
class GroupReport:
    """Tensors that differ only in the layer number; `name` has ``*`` in its place."""

    name: str
    first: TensorReport
    count: int
    nbytes: int

    @property
    def bits_per_weight(self) -> float:
        """Stored bits over true weights."""
        return self.first.bits_per_weight


@dataclass(frozen=True)
class ModelReport:
    """All rows of a model; `kind` is ``cpu_int4``, ``hf`` or ``gguf``."""

    path: Path
    kind: str
    rows: list[TensorReport]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(row.nbytes for row in self.rows)

    @property
    def weights(self) -> int:
        """True weights of all tensors."""
        return sum(row.elements for row in self.rows)

    @property
    def bits_per_weight(self) -> float:
        """Stored bits over true weights, over all tensors."""
        return self.nbytes * 8 / max(1, self.weights)

    def by_format(self) -> dict[str, tuple[int, int]]:
        """Weights and bytes of each format, the largest first."""
        sums: dict[str, tuple[int, int]] = {}
        for row in self.rows:
            weights, nbytes = sums.get(row.format, (0, 0))
            sums[row.format] = (weights + row.elements, nbytes + row.nbytes)
        return dict(sorted(sums.items(), key=lambda item: -item[1][1]))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; sizes in bytes."""
        return {
            "path": str(self.path),
            "kind": self.kind,
            "weights": self.weights,
            "bytes": self.nbytes,
            "bits_per_weight": self.bits_per_weight,
            "formats": {
                name: {"weights": weights, "bytes": nbytes}
                for name, (weights, nbytes) in self.by_format().items()
            },
            "tensors": [_row_dict(row, self.nbytes) for row in self.rows],
        }


def inspect_model(path: str | Path) -> ModelReport:
    """Read the headers of a cpu_int4 or HF folder or of a GGUF file; no weights are read."""
    path = Path(path)
    if is_gguf(path):
        return _inspect_gguf(path)
    with open_checkpoint(path) as checkpoint:
        kind = "cpu_int4" if checkpoint.modules else "hf"
        return ModelReport(path, kind, sorted(checkpoint.entries(), key=_natural))


def group_layers(rows: Sequence[TensorReport]) -> list[GroupReport]:
    """Join rows that are alike in all but the layer number, in the order of first appearance."""
    groups: dict[tuple[Any, ...], list[TensorReport]] = {}
    for row in rows:
        name = _LAYER.sub(r"\1\2.*.", row.name)
        key = (name, row.format, row.form, row.scale_type, row.group_size, row.shape)
        groups.setdefault(key, []).append(row)
    return [
        GroupReport(key[0], members[0], len(members), sum(row.nbytes for row in members))
        for key, members in groups.items()
    ]


def _inspect_gguf(path: Path) -> ModelReport:
    file = GgufFile(path)
    rows = []
    for tensor in file.tensors.values():
        group = tensor.type.block_size if tensor.type.block_size > 1 else 0
        kind = tensor.type.name.lower()
        rows.append(
            TensorReport(tensor.name, kind, "", "", group, tensor.shape, tensor.nbytes, path.name)
        )
    file.close()
    return ModelReport(path, "gguf", sorted(rows, key=_natural))


def _natural(row: TensorReport) -> tuple[str | int, ...]:
    """Sort key that puts layer 2 before layer 10."""
    parts = re.split(r"(\d+)", row.name)
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts))


def _row_dict(row: TensorReport, total: int) -> dict[str, Any]:
    return {
        "name": row.name,
        "format": row.format,
        "form": row.form or None,
        "scale_type": row.scale_type or None,
        "group_size": row.group_size or None,
        "shape": list(row.shape),
        "bytes": row.nbytes,
        "bits_per_weight": row.bits_per_weight,
        "share": row.nbytes / max(1, total),
        "file": row.file,
    }
