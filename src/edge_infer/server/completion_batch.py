"""The generations of a completion's prompts, read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from edge_infer.engine.sequence import Chunk
from edge_infer.server.async_engine import Generation
from edge_infer.server.completion_request import CompletionRequest
from edge_infer.server.generating import submit
from edge_infer.server.state import ServerState


class CompletionBatch:
    """n answers for each prompt; the answer's index is prompt * n + number."""

    def __init__(self, state: ServerState, generations: list[Generation], n: int) -> None:
        self.generations = generations
        self._n = n
        self._meters = [state.metrics.meter() for _ in generations]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(generation.prompt_token_ids) for generation in self.generations)

    @property
    def cached_tokens(self) -> int:
        """Tokens of prompts that were not computed again."""
        return sum(generation.num_cached_tokens for generation in self.generations)

    def stop_reason(self, index: int) -> str | int | None:
        """What ended an answer, if it was the request's own stop."""
        return self.generations[index // self._n].stop_reasons[index % self._n]

    def cancel(self) -> None:
        """End what still runs."""
        for generation in self.generations:
            generation.cancel()

    async def chunks(self) -> AsyncIterator[tuple[int, Chunk]]:
        """(index of the answer, chunk) as they come. Raises what ended one with an error."""
        if len(self.generations) == 1:
            async for item in self._read(0):
                yield item
            return
        queue: asyncio.Queue[tuple[int, Chunk] | BaseException | None] = asyncio.Queue()

        async def forward(number: int) -> None:
            try:
                async for item in self._read(number):
                    queue.put_nowait(item)
                queue.put_nowait(None)
            except Exception as error:  # noqa: BLE001 - raised where the queue is read
                queue.put_nowait(error)

        tasks = [asyncio.create_task(forward(i)) for i in range(len(self.generations))]
        try:
            left = len(tasks)
            while left:
                found = await queue.get()
                if isinstance(found, BaseException):
                    raise found
                if found is None:
                    left -= 1
                else:
                    yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, number: int) -> AsyncIterator[tuple[int, Chunk]]:
        generation, meter = self.generations[number], self._meters[number]
        async for index, chunk in generation:
            meter.chunk(index, chunk, generation.timings[index])
            yield number * self._n + index, chunk


async def start_completions(state: ServerState, asked: CompletionRequest) -> CompletionBatch:
    """Queue all prompts, or none when one is refused."""
    generations: list[Generation] = []
    try:
        for prompt in asked.prompts:
            generation = await submit(
                state,
                prompt,
                asked.sampling,
                n=asked.n,
                priority=asked.priority,
                cache_salt=asked.cache_salt,
            )
            generations.append(generation)
    except BaseException:
        for generation in generations:
            generation.cancel()
        raise
    return CompletionBatch(state, generations, asked.n)
