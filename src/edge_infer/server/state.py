"""What all routes share: the engine behind the server, its settings, its metrics."""

from __future__ import annotations

import hashlib
import time
from typing import cast

from starlette.requests import HTTPConnection

from edge_infer import __version__
from edge_infer.server.async_engine import AsyncEngine
from edge_infer.server.errors import ApiError
from edge_infer.server.metrics import Metrics
from edge_infer.server.settings import Settings
from edge_infer.text.tokenizer import Tokenizer


class ServerState:
    """The state of one server; `request.app.state.server`."""

    def __init__(self, engine: AsyncEngine, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings
        self.model_id = settings.served_model_name or engine.engine.path.name
        self.metrics = Metrics(self.model_id, engine.stats)
        self.created = int(time.time())
        self.system_fingerprint = _fingerprint(engine)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises RequestError when it has none."""
        return self.engine.engine.requests.need_tokenizer("give token ids to /v1/completions")

    def check_model(self, model: str | None) -> None:
        """Refuse another model's name; a request without one means the served model."""
        if model is not None and model != self.model_id:
            raise ApiError(
                404,
                f"the model {model!r} is not served here; {self.model_id!r} is",
                code="model_not_found",
                param="model",
            )


def server_state(connection: HTTPConnection) -> ServerState:
    """The state of the server a request came to."""
    return cast("ServerState", connection.app.state.server)


def _fingerprint(engine: AsyncEngine) -> str:
    """Changes with what may change a seeded answer: this version, the kernels, the formats."""
    model = engine.engine.model
    parts = [__version__, model.isa, model.activations, model.options.kv_dtype]
    parts += sorted(f"{name} {kind}" for name, kind in model.formats.items())
    return "fp_" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
