"""Submitting to the engine, and telling it when the client has gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.types import Receive

from edge_infer.engine.sampling_params import SamplingParams
from edge_infer.server.async_engine import Generation
from edge_infer.server.sampling_fields import naming_parameter
from edge_infer.server.state import ServerState


async def submit(
    state: ServerState,
    prompt: str | Sequence[int],
    params: SamplingParams,
    *,
    n: int = 1,
    priority: int = 0,
    cache_salt: str = "",
) -> Generation:
    """AsyncEngine.submit, whose every refusal names its parameter or carries a code."""
    try:
        return await state.engine.submit(
            prompt, params, n=n, priority=priority, cache_salt=cache_salt
        )
    except (TypeError, ValueError) as error:
        if hasattr(error, "code"):
            raise
        # The sampler's: a token id outside the vocabulary.
        raise naming_parameter(error) from error


@contextlib.asynccontextmanager
async def cancelled_on_disconnect(
    receive: Receive, cancel: Callable[[], None]
) -> AsyncIterator[None]:
    """Call `cancel` as soon as the client goes, while inside.

    The request's body must have been read.
    """

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
