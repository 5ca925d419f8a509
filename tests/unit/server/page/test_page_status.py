"""The figures of GET /v1/status."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import pytest

from edge_infer.memory.measure import MemorySample
from edge_infer.server.state import ServerState
from edge_infer.server.status import STATUS_SCHEMA, MemoryReader, read_status

MIB = 1 << 20


class Kernel:
    """Counts readings; each takes a moment, and shows one MiB more than the last."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def __call__(self) -> MemorySample:
        self.threads.append(threading.get_ident())
        time.sleep(0.02)
        return MemorySample(pss=len(self.threads) * MIB, anonymous=MIB // 4, file=MIB // 2)


def server() -> ServerState:
    """A server with one running and two waiting requests, and a quarter of its blocks in use."""
    plan = SimpleNamespace(
        weights_bytes=80 * MIB, max_model_len=8192, kv_block_bytes=MIB, kv_bytes=400 * MIB
    )
    model = SimpleNamespace(
        plan=plan,
        formats={"q": "int4 g32", "k": "int4 g32", "lm_head": "bf16"},
        isa="avx2",
        threads=SimpleNamespace(threads=3),
    )
    stats = SimpleNamespace(
        num_blocks=400, num_free_blocks=300, kv_usage=0.25, num_running=1, num_waiting=2
    )
    engine = SimpleNamespace(engine=SimpleNamespace(model=model), stats=lambda: stats)
    return cast(ServerState, SimpleNamespace(engine=engine, model_id="tiny"))


def test_the_figures() -> None:
    status = asyncio.run(read_status(server(), MemoryReader(Kernel())))
    assert status == {
        "model": {
            "id": "tiny",
            "weights_formats": {"int4 g32": 2, "bf16": 1},
            "weights_bytes": 80 * MIB,
            "max_model_len": 8192,
        },
        "kv_cache": {"used_bytes": 100 * MIB, "total_bytes": 400 * MIB, "usage": 0.25},
        "memory": {"pss_bytes": MIB, "file_bytes": MIB // 2, "anonymous_bytes": MIB // 4},
        "requests": {"running": 1, "waiting": 2},
        "runtime": {"isa": "avx2", "threads": 3},
    }
    jsonschema.validate(status, STATUS_SCHEMA)


def test_the_schema_is_strict_about_what_the_page_reads() -> None:
    status = asyncio.run(read_status(server(), MemoryReader(Kernel())))
    del status["kv_cache"]["usage"]
    with pytest.raises(jsonschema.ValidationError, match="usage"):
        jsonschema.validate(status, STATUS_SCHEMA)


def test_memory_is_null_where_the_kernel_does_not_tell_it() -> None:
    def read() -> MemorySample:
        raise OSError("no smaps_rollup")

    status = asyncio.run(read_status(server(), MemoryReader(read)))
    assert status["memory"] is None
    jsonschema.validate(status, STATUS_SCHEMA)


def test_those_who_ask_together_share_one_reading_off_the_loop() -> None:
    kernel = Kernel()
    reader = MemoryReader(kernel)

    async def ask() -> list[Any]:
        return await asyncio.gather(*(reader.sample() for _ in range(8)))

    samples = asyncio.run(ask())
    assert {sample.pss for sample in samples} == {MIB}
    assert len(kernel.threads) == 1
    assert kernel.threads[0] != threading.get_ident()


def test_a_reading_is_kept_for_a_moment_only() -> None:
    kernel = Kernel()
    reader = MemoryReader(kernel, keep_seconds=0.5)

    async def ask() -> list[MemorySample | None]:
        samples = [await reader.sample(), await reader.sample()]
        await asyncio.sleep(0.6)
        return [*samples, await reader.sample()]

    sizes = [sample.pss // MIB for sample in asyncio.run(ask()) if sample is not None]
    assert sizes == [1, 1, 2]


def test_this_process_can_be_read() -> None:
    sample = asyncio.run(MemoryReader().sample())
    assert sample is not None
    assert sample.pss > MIB
