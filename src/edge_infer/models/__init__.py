"""Model architectures: one declarative file each, chosen by config.json's `architectures`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edge_infer.models import llama, qwen2, qwen3, spark2_5
from edge_infer.models.config import Config, ConfigError
from edge_infer.program.builder import ActivationName, ProgramBuilder, Weights
from edge_infer.program.spec import ProgramSpec

_FILES = (llama, qwen2, qwen3, spark2_5)
_BUILDERS: dict[str, Callable[[ProgramBuilder, Config], None]] = {
    name: module.build for module in _FILES for name in module.ARCHITECTURES
}


def architecture(config: Mapping[str, Any]) -> str:
    """The architecture a config.json names. Raises ConfigError when it cannot be served."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise ConfigError("config.json: architectures must name the model's class")
    for name in names:
        if isinstance(name, str) and name in _BUILDERS:
            return str(name)
    raise ConfigError(
        f"config.json: architectures {names} are not supported; "
        f"supported: {', '.join(sorted(_BUILDERS))}"
    )


def build_model(
    config: Mapping[str, Any],
    weights: Weights,
    *,
    activations: ActivationName = "int8",
) -> ProgramSpec:
    """Record the step program of a checkpoint.

    Reads only headers and small vectors. Raises ConfigError or CheckpointError.
    """
    builder = ProgramBuilder(weights, activations)
    _BUILDERS[architecture(config)](builder, Config(config))
    return builder.finish()
