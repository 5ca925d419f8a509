"""The figures of GET /v1/status: the model, its memory and what the engine is doing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edge_infer.memory.measure import MemorySample, process_tree_memory

if TYPE_CHECKING:
    from edge_infer.server.state import ServerState


class MemoryReader:
    """PSS of this process and its children, read in a thread and kept for a moment.

    A reading walks page tables, about 6 ms for each GB that is mapped, so those who ask at the
    same time share one.
    """

    def __init__(
        self,
        read: Callable[[], MemorySample] = process_tree_memory,
        keep_seconds: float = 1.0,
    ) -> None:
        self._read = read
        self._keep_seconds = keep_seconds
        self._lock = threading.Lock()
        self._expires = 0.0
        self._sample: MemorySample | None = None

    async def sample(self) -> MemorySample | None:
        """The memory at most `keep_seconds` ago; None where the kernel does not tell it."""
        if time.monotonic() < self._expires:
            return self._sample
        return await asyncio.to_thread(self._fresh)

    def _fresh(self) -> MemorySample | None:
        with self._lock:
            if time.monotonic() < self._expires:
                return self._sample  # read while this thread waited
            try:
                self._sample = self._read()
            except OSError:
                self._sample = None  # a kernel without CONFIG_PROC_PAGE_MONITOR, or before 5.9
            self._expires = time.monotonic() + self._keep_seconds
            return self._sample


# The figures are of the process, and so is their reader.
_memory = MemoryReader()


async def read_status(server: ServerState, memory: MemoryReader = _memory) -> dict[str, Any]:
    """The body of GET /v1/status; sizes in bytes.

    `weights_formats` counts the linear layers of each format. `usage` is the share of the KV
    cache that running sequences hold, 0 to 1.
    """
    model = server.engine.engine.model
    plan = model.plan
    stats = server.engine.stats()
    sample = await memory.sample()
    return {
        "model": {
            "id": server.model_id,
            "weights_formats": dict(Counter(model.formats.values()).most_common()),
            "weights_bytes": plan.weights_bytes,
            "max_model_len": plan.max_model_len,
        },
        "kv_cache": {
            "used_bytes": round(stats.kv_usage * plan.kv_bytes),
            "total_bytes": plan.kv_bytes,
            "usage": stats.kv_usage,
        },
        "memory": None
        if sample is None
        else {
            "pss_bytes": sample.pss,
            "file_bytes": sample.file,
            "anonymous_bytes": sample.anonymous,
        },
        "requests": {"running": stats.num_running, "waiting": stats.num_waiting},
        "runtime": {"isa": model.isa, "threads": model.threads.threads},
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


_BYTES = {"type": "integer", "minimum": 0, "description": "bytes"}
_COUNT = {"type": "integer", "minimum": 0}

STATUS_SCHEMA = _object(
    {
        "model": _object(
            {
                "id": {"type": "string"},
                "weights_formats": {
                    "type": "object",
                    "additionalProperties": _COUNT,
                    "description": "how many linear layers have each format",
                },
                "weights_bytes": _BYTES,
                "max_model_len": {**_COUNT, "description": "tokens, prompt and answer"},
            }
        ),
        "kv_cache": _object(
            {
                "used_bytes": _BYTES,
                "total_bytes": _BYTES,
                "usage": {"type": "number", "minimum": 0, "maximum": 1},
            }
        ),
        "memory": {
            "description": "null where the kernel does not tell it",
            "anyOf": [
                _object({"pss_bytes": _BYTES, "file_bytes": _BYTES, "anonymous_bytes": _BYTES}),
                {"type": "null"},
            ],
        },
        "requests": _object({"running": _COUNT, "waiting": _COUNT}),
        "runtime": _object({"isa": {"type": "string"}, "threads": _COUNT}),
    }
)
