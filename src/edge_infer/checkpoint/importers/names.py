"""Comparing the tensors of a source with those its configuration implies."""

from collections.abc import Mapping
from pathlib import Path

from edge_infer.checkpoint.architectures import ExpectedTensor, is_derived
from edge_infer.checkpoint.errors import fail
from edge_infer.checkpoint.sources import SourceTensor


def check_names(
    tensors: Mapping[str, SourceTensor], expected: Mapping[str, ExpectedTensor], path: Path
) -> dict[str, SourceTensor]:
    """Return the tensors in the order of `expected`; one error lists all missing, all unknown.

    Dropped are tensors that the configuration implies, and a stored lm_head when it is tied.
    """
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise fail(path, f"{len(missing)} tensors are missing: {', '.join(missing)}")
    unknown = [
        name
        for name in tensors
        if name not in expected and name != "lm_head.weight" and not is_derived(name)
    ]
    if unknown:
        raise fail(path, f"{len(unknown)} tensors are not known: {', '.join(unknown)}")
    for name, item in expected.items():
        shape = tensors[name].shape
        if shape != item.shape:
            raise fail(
                path,
                f"shape is {list(shape)}, the configuration implies {list(item.shape)}",
                tensor=name,
            )
    return {name: tensors[name] for name in expected}
