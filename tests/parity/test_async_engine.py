"""The engine behind an event loop: delivery, cancellation, limits and faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_infer import Engine, SamplingParams
from edge_infer.engine.errors import ContextLengthError, EngineError
from edge_infer.server.async_engine import AsyncEngine, Generation, QueueFullError

TinyModel = Callable[..., tuple[Path, Any]]

LONG = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
SHORT = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture
def run(tiny_model: TinyModel) -> Callable[..., None]:
    """Runs a coroutine function with a started engine; afterwards no block may be held."""
    path, _ = tiny_model("qwen3")

    def runner(test: Callable[[AsyncEngine], Coroutine[Any, Any, None]], **settings: Any) -> None:
        async def main() -> None:
            engine = AsyncEngine(Engine(path, max_model_len=256, max_num_seqs=4), **settings)
            engine.start()
            try:
                await asyncio.wait_for(test(engine), 60)
                if engine.fatal_error is None:
                    await until(lambda: engine.stats().num_running == 0)
                    assert engine.stats().num_free_blocks == engine.stats().num_blocks
            finally:
                await engine.stop()

        asyncio.run(main())

    return runner


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass")


async def read(generation: Generation) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    async for index, chunk in generation:
        tokens.setdefault(index, []).extend(chunk.token_ids)
    return tokens


def test_many_requests_get_what_they_get_alone(
    run: Callable[..., None], tiny_model: TinyModel
) -> None:
    path, _ = tiny_model("qwen3")
    texts = [[5 + i, 9, 11, 13 + i] for i in range(10)]
    with Engine(path, max_model_len=256) as alone:
        expected = [alone.generate([t], SHORT)[0].token_ids for t in texts]

    async def test(engine: AsyncEngine) -> None:
        generations = [await engine.submit(t, SHORT) for t in texts]
        answers = await asyncio.gather(*(read(g) for g in generations))
        assert [a[0] for a in answers] == expected

    run(test)


def test_n_sequences_share_the_prompt(run: Callable[..., None]) -> None:
    async def test(engine: AsyncEngine) -> None:
        params = SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True, seed=1)
        prompt = list(range(5, 55))
        generation = await engine.submit(prompt, params, n=3)
        answers = await read(generation)
        assert sorted(answers) == [0, 1, 2]
        assert len({tuple(a) for a in answers.values()}) == 3
        assert engine.stats().prompt_tokens == 50 + 2 * 2
        again = await read(await engine.submit(prompt, params, n=3))
        assert again == answers

    run(test)


def test_leaving_frees_the_blocks(run: Callable[..., None]) -> None:
    async def test(engine: AsyncEngine) -> None:
        async with await engine.submit([5, 6, 7], LONG) as generation:
            await anext(generation)
            assert engine.stats().num_running == 1
        await until(lambda: engine.stats().num_running == 0)
        assert engine.stats().num_free_blocks == engine.stats().num_blocks
        assert [chunk async for chunk in generation if chunk[1].finish_reason] == []

    run(test)


def test_a_waiting_request_can_be_cancelled(run: Callable[..., None]) -> None:
    async def test(engine: AsyncEngine) -> None:
        running = [await engine.submit([5, i], LONG) for i in range(5, 9)]
        waiting = await engine.submit([7, 7], LONG)
        waiting.cancel()
        assert await read(waiting) == {}
        for generation in running:
            generation.cancel()

    run(test)


def test_the_queue_is_bounded(run: Callable[..., None]) -> None:
    async def test(engine: AsyncEngine) -> None:
        generations = [await engine.submit([5, i], LONG) for i in range(5, 9)]
        await until(lambda: engine.stats().num_running == 4)
        generations += [await engine.submit([6, i], LONG) for i in range(5, 7)]
        with pytest.raises(QueueFullError, match="2 requests wait") as error:
            await engine.submit([7, 7], LONG)
        assert error.value.retry_after >= 1
        for generation in generations:
            generation.cancel()

    run(test, max_waiting=2)


def test_what_does_not_fit_is_refused(run: Callable[..., None]) -> None:
    async def test(engine: AsyncEngine) -> None:
        with pytest.raises(ContextLengthError):
            await engine.submit([5] * 256, SHORT)

    run(test)


def test_a_failed_step_fails_its_own_and_three_end_the_engine(run: Callable[..., None]) -> None:
    async def test(engine: AsyncEngine) -> None:
        runner = engine.engine.model.runner
        step = runner.raw_step
        failures = iter([True])

        def failing(*arguments: Any) -> Any:
            if next(failures, False):
                raise RuntimeError("scripted")
            return step(*arguments)

        runner.raw_step = failing  # type: ignore[method-assign]
        with pytest.raises(EngineError, match="scripted"):
            await read(await engine.submit([5, 6], SHORT))
        assert len((await read(await engine.submit([5, 6], SHORT)))[0]) == 8
        failures = iter([True] * 3)
        for _ in range(3):
            with pytest.raises(EngineError, match="scripted"):
                await read(await engine.submit([5, 6], SHORT))
        await asyncio.wait_for(engine.fatal.wait(), 10)
        with pytest.raises(EngineError, match="3 steps in a row failed"):
            await engine.submit([5, 6], SHORT)

    run(test)


def test_embeddings_do_not_depend_on_what_runs_beside_them(run: Callable[..., None]) -> None:
    async def test(engine: AsyncEngine) -> None:
        alone = await engine.embed([[5, 6, 7]])
        generation = await engine.submit([9, 9], LONG)
        beside = await engine.embed([[8, 9, 10, 11], [5, 6, 7]])
        generation.cancel()
        assert beside.shape == (2, alone.shape[1])
        np.testing.assert_allclose(beside[1], alone[0], rtol=1e-2, atol=1e-2)
        assert not np.allclose(beside[0], beside[1], rtol=1e-2, atol=1e-2)

    run(test)
