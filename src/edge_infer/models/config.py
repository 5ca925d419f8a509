"""Reading a checkpoint's config.json: required, optional and unsupported are three calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class ConfigError(ValueError):
    """A config.json that cannot be served; the message names the field and the value."""


class Config:
    """Typed reads of a config.json."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def integer(self, name: str, default: int | None = None, *, limit: int = 1 << 24) -> int:
        """A positive integer of at most `limit`; required when there is no default."""
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            raise ConfigError(f"config.json: {name} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            raise ConfigError(
                f"config.json: {name} must be an integer of 1 to {limit}, not {value!r}"
            )
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite, positive number; required when there is no default."""
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            raise ConfigError(f"config.json: {name} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise ConfigError(f"config.json: {name} must be a positive number, not {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise ConfigError(f"config.json: {name} must be true or false, not {value!r}")
        return value

    def get(self, name: str) -> Any:
        """The raw value, None when absent."""
        return self._values.get(name)

    def choice(self, name: str, allowed: Iterable[str], default: str) -> str:
        """One of the allowed strings."""
        value = self._values.get(name, default)
        names = list(allowed)
        if value not in names:
            raise ConfigError(
                f"config.json: {name} {value!r} is not supported; supported: {', '.join(names)}"
            )
        return str(value)

    def unsupported(self, name: str, *neutral: Any) -> None:
        """Refuse a field whose value would change the result and is not implemented."""
        value = self._values.get(name)
        if value is not None and value not in neutral:
            raise ConfigError(
                f"config.json: {name}={value!r} is not supported by this architecture"
            )

    def rope_parameters(self, layer_type: str | None = None) -> dict[str, Any]:
        """RoPE parameters, from `rope_parameters` or from the older pair of fields.

        With `layer_type`, the entry of that type where the parameters are given per type.
        """
        parameters = self._values.get("rope_parameters") or self._values.get("rope_scaling") or {}
        if not isinstance(parameters, Mapping):
            raise ConfigError(f"config.json: rope_parameters must be an object, not {parameters!r}")
        if layer_type is not None and any(isinstance(v, Mapping) for v in parameters.values()):
            entry = parameters.get(layer_type)
            if not isinstance(entry, Mapping):
                raise ConfigError(f"config.json: rope_parameters has no entry for {layer_type!r}")
            parameters = entry
        result = dict(parameters)
        for name in ("rope_theta", "partial_rotary_factor"):
            if result.get(name) is None and self._values.get(name) is not None:
                result[name] = self._values[name]
        return result

    def context_length(self) -> int:
        """The longest sequence the checkpoint claims: max_position_embeddings, scaled by RoPE.

        linear and dynamic scaling multiply it; yarn multiplies the original length. This is
        how vLLM derives it.
        """
        length = self.integer("max_position_embeddings", 2048)
        rope = self.rope_parameters()
        rope_type = rope.get("rope_type") or rope.get("type")
        factor = rope.get("factor")
        if not isinstance(factor, int | float) or not 1 <= factor <= 1024:
            return length
        if rope_type in ("linear", "dynamic"):
            return int(length * factor)
        original = rope.get("original_max_position_embeddings")
        if rope_type == "yarn" and isinstance(original, int):
            return max(length, int(original * factor))
        return length

    def layer_types(self, num_layers: int) -> list[str]:
        """`layer_types`, one of full_attention and sliding_attention per layer."""
        types = self._values.get("layer_types")
        if types is None:
            return ["full_attention"] * num_layers
        known = {"full_attention", "sliding_attention"}
        if not isinstance(types, list) or len(types) < num_layers or not set(types) <= known:
            raise ConfigError(
                f"config.json: layer_types must name {' or '.join(sorted(known))} for each of "
                f"{num_layers} layers"
            )
        return [str(t) for t in types[:num_layers]]
