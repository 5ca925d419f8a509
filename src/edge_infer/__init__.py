"""edge-infer: multimodal models on edge CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_infer.engine.engine import Completion, Engine
    from edge_infer.engine.errors import (
        ContextLengthError,
        EngineError,
        MemoryRefusal,
        RequestError,
    )
    from edge_infer.engine.sampling_params import SamplingParams

__all__ = [
    "Completion",
    "ContextLengthError",
    "Engine",
    "EngineError",
    "MemoryRefusal",
    "RequestError",
    "SamplingParams",
    "__version__",
]

__version__: str

_HOMES = {
    "ContextLengthError": "edge_infer.engine.errors",
    "EngineError": "edge_infer.engine.errors",
    "MemoryRefusal": "edge_infer.engine.errors",
    "RequestError": "edge_infer.engine.errors",
    "Completion": "edge_infer.engine.engine",
    "Engine": "edge_infer.engine.engine",
    "SamplingParams": "edge_infer.engine.sampling_params",
}


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that light commands start fast."""
    if name == "__version__":
        from importlib.metadata import version

        return version("edge-infer")
    if name not in _HOMES:
        raise AttributeError(f"module 'edge_infer' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
