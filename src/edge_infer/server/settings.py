"""What the server is told when it starts, beside the engine's own options."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_MAX_BODY_BYTES = 32 << 20


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the HTTP side.

    api_keys: keys that open the API; empty for no check.
    cors_origins: origins whose pages may call the API, `*` for all; empty for none.
    max_body_bytes: longest body of a request.
    served_model_name: the id clients use; None for the model's own name.
    max_waiting: sequences that may wait for a place in the batch.
    ignore_unknown_parameters: name unknown parameters in the header `x-ignored-parameters`
        instead of refusing them.
    no_page: serve no chat page at `/`.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    served_model_name: str | None = None
    max_waiting: int = 256
    ignore_unknown_parameters: bool = False
    no_page: bool = False
    log_level: str = "warning"

    def __post_init__(self) -> None:
        limits = {
            "port": (0, 65535),
            "max_body_bytes": (1024, 1 << 34),
            "max_waiting": (0, 1 << 20),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be an integer of {low} to {high}, not {value!r}")
        if not all(self.api_keys):
            raise ValueError("an API key is empty; one character is the least")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ValueError("ssl_certfile and ssl_keyfile belong together: give both or none")
        levels = ("critical", "error", "warning", "info", "debug")
        if self.log_level not in levels:
            raise ValueError(
                f"log_level must be one of {', '.join(levels)}, not {self.log_level!r}"
            )

    @property
    def scheme(self) -> str:
        """`https` with a certificate, else `http`."""
        return "http" if self.ssl_certfile is None else "https"
