"""What becomes of each tensor of a source: which format, how, and why when it is not the usual."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edge_infer.checkpoint.architectures import ExpectedTensor
from edge_infer.checkpoint.errors import CheckpointError, fail
from edge_infer.checkpoint.format import GROUP_SIZES, ModuleFormat
from edge_infer.checkpoint.sources import (
    DIRECT_TYPES,
    EXACT_TYPES,
    BlockSource,
    DenseSource,
    SourceTensor,
)

HEAD_FORMATS = ("int8", "int4", "keep")
FORMS = ("symmetric", "min")
SCALE_TYPES = ("f16", "bf16")
WIDE_FORMATS = ("int8", "int4")
DIRECT_GROUP = 32

# ggml types of more than 5 bits a weight lose visibly in 4; by default they become int8.
_WIDE_TYPES = ("Q5_0", "Q5_1", "Q5_K", "Q6_K")
# Types of at most 4.5 bits in small groups: small groups and minimums requantize them best.
_NARROW_TYPES = ("Q2_K", "Q3_K", "Q4_K", "IQ4_NL")


@dataclass(frozen=True)
class QuantizeOptions:
    """How weights that are not exactly representable are quantized.

    `group_size` and `form` default to 128 and symmetric for float sources and to 32 and min for
    ggml types of fewer than 5 bits. `head_format` is for the embedding and the output head (int8
    in groups of 32, int4, or keep). `wide_format` is for ggml types of 5 and 6 bits.
    """

    group_size: int | None = None
    form: str | None = None
    scale_type: str = "f16"
    head_format: str = "int8"
    wide_format: str = "int8"

    def check(self) -> None:
        """Raise CheckpointError for a value out of range, naming it."""
        for name, value, allowed in (
            ("group_size", self.group_size, (None, *GROUP_SIZES)),
            ("form", self.form, (None, *FORMS)),
            ("scale_type", self.scale_type, SCALE_TYPES),
            ("head_format", self.head_format, HEAD_FORMATS),
            ("wide_format", self.wide_format, WIDE_FORMATS),
        ):
            if value not in allowed:
                choices = ", ".join(str(item) for item in allowed if item is not None)
                raise CheckpointError(f"{name} is {value!r}, expected one of {choices}")


@dataclass(frozen=True)
class TensorPlan:
    """One tensor's way: `module` is None for what stays as it is, `direct` keeps the integers."""

    source: SourceTensor
    module: ModuleFormat | None
    direct: bool
    note: str = ""

    @property
    def name(self) -> str:
        """The module's name when quantized, else the tensor's."""
        full = self.source.name
        return full.removesuffix(".weight") if self.module else full

    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The safetensors entries to write: name -> (dtype, shape)."""
        if self.module is not None:
            return self.module.tensors(self.name)
        return {self.name: (self.source.kind, self.source.shape)}


def plan_tensors(
    tensors: Mapping[str, SourceTensor],
    expected: Mapping[str, ExpectedTensor],
    options: QuantizeOptions,
    path: Path,
) -> list[TensorPlan]:
    """Decide for every tensor, in order; `path` is named in errors."""
    options.check()
    return [_plan(source, expected[name].role, options, path) for name, source in tensors.items()]


def _plan(source: SourceTensor, role: str, options: QuantizeOptions, path: Path) -> TensorPlan:
    if role == "dense" or (role == "head" and options.head_format == "keep"):
        return _keep(source, path)
    n, k = source.shape
    if source.kind in DIRECT_TYPES and (source.kind in EXACT_TYPES or _unforced(role, options)):
        return _direct(source, options)
    if k % GROUP_SIZES[0]:
        note = f"K = {k} is not a multiple of {GROUP_SIZES[0]}: stays {source.kind.lower()}"
        return TensorPlan(source, None, False, note)
    format_, form, group, note = _choose(source.kind, role, options)
    fitting = next(
        size for size in sorted(GROUP_SIZES, reverse=True) if size <= group and not k % size
    )
    if fitting != group:
        note = f"group {fitting}, as K = {k} is not a multiple of {group}"
    module = ModuleFormat(format_, form, options.scale_type, fitting, n, k)
    return TensorPlan(source, module, False, note)


def _choose(kind: str, role: str, options: QuantizeOptions) -> tuple[str, str, int, str]:
    if role == "head" and options.head_format == "int8":
        return "int8", "symmetric", DIRECT_GROUP, ""
    if kind in _WIDE_TYPES and options.wide_format == "int8":
        return "int8", "symmetric", DIRECT_GROUP, f"int8, as {kind} has more than 4 bits"
    narrow = kind in _NARROW_TYPES or kind in _WIDE_TYPES
    form = options.form or ("min" if narrow else "symmetric")
    return "int4", form, options.group_size or (32 if narrow else 128), ""


def _unforced(role: str, options: QuantizeOptions) -> bool:
    """Whether the options leave the choice of a format for this tensor to us."""
    if role == "head" and options.head_format == "int8":
        return False
    return options.group_size in (None, DIRECT_GROUP) and options.form in (None, "min")


def _direct(source: SourceTensor, options: QuantizeOptions) -> TensorPlan:
    n, k = source.shape
    format_, form = DIRECT_TYPES[source.kind]
    scale_type = "f16" if source.kind in EXACT_TYPES else options.scale_type
    return TensorPlan(source, ModuleFormat(format_, form, scale_type, DIRECT_GROUP, n, k), True)


def _keep(source: SourceTensor, path: Path) -> TensorPlan:
    if isinstance(source, DenseSource):
        return TensorPlan(source, None, False)
    if isinstance(source, BlockSource) and source.kind in EXACT_TYPES:
        return _direct(source, QuantizeOptions())
    raise fail(path, f"type {source.kind} cannot be kept as it is", tensor=source.name)
