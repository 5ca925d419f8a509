"""Comparing the tensors of a source with those its configuration implies."""

from collections.abc import Mapping
from pathlib import Path

from edge_infer.checkpoint.architectures import ExpectedTensor, check_shapes
from edge_infer.checkpoint.sources import SourceTensor


def check_names(
    tensors: Mapping[str, SourceTensor], expected: Mapping[str, ExpectedTensor], path: Path
) -> dict[str, SourceTensor]:
    """Return the tensors in the order of `expected`; one error lists all missing, all unknown.

    Dropped are tensors that the configuration implies, and a stored lm_head when it is tied.
    """
    check_shapes({name: tensor.shape for name, tensor in tensors.items()}, expected, path)
    return {name: tensors[name] for name in expected}
