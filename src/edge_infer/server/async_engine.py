"""The engine behind an event loop: one thread makes the steps, tasks read what comes of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edge_infer.engine.engine import Engine
from edge_infer.engine.errors import EngineError
from edge_infer.engine.sampling_params import SamplingParams
from edge_infer.engine.sequence import Chunk, Sequence, Timing

MAX_FAILED_STEPS = 3  # in a row; then the engine cannot go on
MAX_INLINE_CHARACTERS = 2000  # a longer text is tokenized beside the event loop


class QueueFullError(RuntimeError):
    """As many requests wait as may. Another server, or this one later, can take it."""

    code = "queue_full"

    def __init__(self, waiting: int, retry_after: int) -> None:
        self.retry_after = retry_after  # seconds
        super().__init__(f"{waiting} requests wait already; try again in {retry_after} s")


@dataclass(frozen=True)
class EngineStats:
    """What the engine does now, and counts since it started."""

    num_running: int
    num_waiting: int
    kv_usage: float  # share of the blocks that sequences hold
    num_free_blocks: int
    num_blocks: int
    num_preemptions: int
    prefix_cache_queries: int  # tokens
    prefix_cache_hits: int  # tokens
    prompt_tokens: int
    generation_tokens: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int  # of the drafts


class Generation:
    """The sequences of one request; iterate for (index, chunk), leave it to cancel."""

    def __init__(self, engine: AsyncEngine, sequences: Seq[Sequence]) -> None:
        self._engine = engine
        self._sequences = sequences
        self._changed = asyncio.Event()

    @property
    def prompt_token_ids(self) -> list[int]:
        """The tokens of the prompt."""
        return self._sequences[0].prompt_token_ids

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that were not computed again, once the first chunk came."""
        return self._sequences[0].num_cached_tokens or 0

    @property
    def timings(self) -> list[Timing]:
        """When each sequence came and got its first and last token."""
        return [sequence.timing for sequence in self._sequences]

    @property
    def stop_reasons(self) -> list[str | int | None]:
        """The stop string, or the request's own stop token, that ended each sequence."""
        return [sequence.stop_reason for sequence in self._sequences]

    @property
    def hidden(self) -> NDArray[np.float32] | None:
        """The last token's hidden state, of a request for it that has ended."""
        return self._sequences[0].hidden

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> tuple[int, Chunk]:
        """The next chunk of any of the sequences. Raises what ended one with an error."""
        while True:
            # Cleared before looking: what changes after the look sets it again.
            self._changed.clear()
            ended = 0
            for index, sequence in enumerate(self._sequences):
                # Read before the chunks: the end is published after the last of them.
                reason = sequence.finish_reason
                if sequence.chunks:
                    return index, sequence.chunks.popleft()
                if sequence.error is not None:
                    raise sequence.error
                ended += reason is not None
            if ended == len(self._sequences):
                raise StopAsyncIteration
            await self._changed.wait()

    def cancel(self) -> None:
        """End what still runs; its blocks are free before the next step."""
        self._engine.cancel([s for s in self._sequences if s.finish_reason is None])

    def wake(self) -> None:
        """Something came; called on the event loop's thread."""
        self._changed.set()

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()


class AsyncEngine:
    """Runs an engine's steps on a thread of its own, for requests of one event loop.

    `fatal` is set when the engine cannot go on: its requests have failed, `fatal_error` says
    why, and the process should exit so that a supervisor starts another.
    """

    def __init__(self, engine: Engine, *, max_waiting: int = 256) -> None:
        self.engine = engine
        self.max_waiting = max_waiting
        self.fatal = asyncio.Event()
        self.fatal_error: BaseException | None = None
        self._core = engine.take_core()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._wake = threading.Condition()
        self._inbox: deque[Sequence] = deque()
        self._cancelled: deque[Sequence] = deque()
        self._stopping = False
        # Of sequences that have not ended; touched on the event loop's thread only.
        self._generations: dict[Sequence, Generation] = {}
        self._seconds_per_request = 1.0  # smoothed, for Retry-After

    def start(self) -> None:
        """Start making steps; to be called on the event loop that will make the requests."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Fail what runs and end the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    async def submit(
        self,
        prompt: str | Seq[int],
        params: SamplingParams,
        *,
        n: int = 1,
        priority: int = 0,
        cache_salt: str = "",
    ) -> Generation:
        """Queue n sequences for a prompt.

        Raises RequestError, ContextLengthError, ValueError and TypeError for what
        cannot be served, QueueFullError, and EngineError when the engine has stopped.
        """
        self._check_open()
        build = self.engine.requests.build
        short = not isinstance(prompt, str) or len(prompt) <= MAX_INLINE_CHARACTERS
        if short and params.structured_outputs is None:  # a grammar takes time to compile
            sequences = build(prompt, params, n=n, priority=priority, cache_salt=cache_salt)
        else:
            sequences = await asyncio.to_thread(
                build, prompt, params, n=n, priority=priority, cache_salt=cache_salt
            )
            self._check_open()
        return self._queue(sequences)

    async def embed(self, prompts: Seq[Seq[int]]) -> NDArray[np.float32]:
        """Hidden states of the prompts' last tokens after the final norm: [prompts, hidden]."""
        self._check_open()
        sequences = [self.engine.requests.build_embedding(prompt) for prompt in prompts]
        generations = [self._queue([sequence]) for sequence in sequences]
        try:
            for generation in generations:
                async for _ in generation:
                    pass
        finally:
            for generation in generations:
                generation.cancel()
        return np.stack([s.hidden for s in sequences if s.hidden is not None])

    def stats(self) -> EngineStats:
        """The figures of this moment."""
        scheduler = self._core.scheduler
        blocks = scheduler.blocks
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=self._num_waiting(),
            kv_usage=self._core.kv_used_bytes / self.engine.model.plan.kv_bytes,
            num_free_blocks=blocks.num_free,
            num_blocks=blocks.num_blocks,
            num_preemptions=scheduler.num_preemptions,
            prefix_cache_queries=scheduler.prefix_cache_queries,
            prefix_cache_hits=scheduler.prefix_cache_hits,
            prompt_tokens=self._core.num_prompt_tokens,
            generation_tokens=self._core.num_generated_tokens,
            drafts=self._core.num_drafts,
            draft_tokens=self._core.num_draft_tokens,
            accepted_tokens=self._core.num_accepted_tokens,
        )

    def cancel(self, sequences: Seq[Sequence]) -> None:
        """End sequences before the next step, if they still run."""
        if sequences:
            with self._wake:
                self._cancelled.extend(sequences)
                self._wake.notify()

    def _num_waiting(self) -> int:
        return len(self._inbox) + len(self._core.scheduler.waiting)

    def _check_open(self) -> None:
        if self.fatal_error is not None:
            raise EngineError(f"the engine has stopped: {self.fatal_error}")
        if self._stopping or self._loop is None:
            raise EngineError("the engine is not running")

    def _queue(self, sequences: Seq[Sequence]) -> Generation:
        waiting = self._num_waiting()
        # A sequence that finds a free slot does not wait.
        free_slots = self._core.scheduler.max_num_seqs - len(self._core.scheduler.running)
        if waiting + len(sequences) > self.max_waiting + max(0, free_slots):
            turns = waiting / self._core.scheduler.max_num_seqs
            raise QueueFullError(waiting, max(1, round(turns * self._seconds_per_request)))
        generation = Generation(self, sequences)
        for sequence in sequences:
            self._generations[sequence] = generation
        with self._wake:
            self._inbox.extend(sequences)
            self._wake.notify()
        return generation

    # --- On the event loop's thread, after a step ---------------------------------------------

    def _deliver(self, changed: Seq[Sequence]) -> None:
        for sequence in changed:
            generation = self._generations.get(sequence)
            if generation is None:
                continue  # it had ended before it was cancelled
            if sequence.finish_reason is not None:
                del self._generations[sequence]
                took = time.perf_counter() - sequence.timing.arrived
                self._seconds_per_request += 0.1 * (took - self._seconds_per_request)
            generation.wake()

    # --- On the engine's thread ---------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._take_requests():
                if self._core.has_work():
                    self._tell(self._core.step())
                if self._core.num_failed_steps >= MAX_FAILED_STEPS:
                    raise EngineError(f"{MAX_FAILED_STEPS} steps in a row failed")
            reason: Exception = EngineError("the server is shutting down")
        except Exception as error:  # noqa: BLE001 - whatever it was, nobody may wait for ever
            self.fatal_error = error
            reason = EngineError(f"the engine has stopped: {error}")
        with self._wake:
            self._stopping = True
            for sequence in self._inbox:
                self._core.add(sequence)
            self._inbox.clear()
        self._tell(self._core.fail_all(reason))
        if self.fatal_error is not None:
            self._call(self.fatal.set)

    def _take_requests(self) -> bool:
        """Wait until there is something to do; False when it is to stop."""
        with self._wake:
            while not (self._stopping or self._inbox or self._cancelled or self._core.has_work()):
                self._wake.wait()
            while self._inbox:
                self._core.add(self._inbox.popleft())
            cancelled = list(self._cancelled)
            self._cancelled.clear()
        self._core.cancel(cancelled)
        self._tell(cancelled)
        return not self._stopping

    def _tell(self, changed: Seq[Sequence]) -> None:
        if changed:
            self._call(self._deliver, changed)

    def _call(self, function: object, *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *args)  # type: ignore[arg-type]
        except RuntimeError:
            if not self._loop.is_closed():  # nobody is left to be told
                raise
