"""The engine: requests in, text out, continuous batching between."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, overload

import numpy as np

from edge_infer.engine.core import EngineCore
from edge_infer.engine.errors import EngineError
from edge_infer.engine.load import LoadedModel, load_model
from edge_infer.engine.options import EngineOptions
from edge_infer.engine.requests import Ids, Prompt, RequestBuilder
from edge_infer.engine.sampler import Sampled
from edge_infer.engine.sampling_params import SamplingParams
from edge_infer.engine.sequence import Chunk, FinishReason, Sequence, Timing
from edge_infer.hub.source import resolve_model
from edge_infer.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Completion:
    """A finished sequence."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    prompt_token_ids: list[int]
    logprobs: list[Sampled] | None = None
    timing: Timing = field(default_factory=Timing)


class Stream(Iterator[Chunk]):
    """The chunks of one sequence; reading runs the engine. Close it to cancel."""

    def __init__(self, engine: Engine, sequence: Sequence) -> None:
        self._engine = engine
        self._sequence = sequence

    @property
    def prompt_token_ids(self) -> list[int]:
        """The tokens of the prompt."""
        return self._sequence.prompt_token_ids

    def __next__(self) -> Chunk:
        sequence = self._sequence
        while not sequence.chunks:
            if sequence.finish_reason is not None:
                if sequence.chunks:
                    break  # another thread's step ended it between the two looks
                _raise_error(sequence)
                raise StopIteration
            self._engine.advance(sequence)
        return sequence.chunks.popleft()

    def close(self) -> None:
        """Cancel the sequence if it still runs; nothing is left of it afterwards."""
        self._engine.cancel([self._sequence])
        self._sequence.chunks.clear()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # The collector may run inside a step, on the thread that holds the engine's lock.
        self._engine.drop(self._sequence)


class Engine:
    """A model on this CPU.

    `model` is a folder, a GGUF file, a hub id or a built-in name; the keywords are those
    of EngineOptions. Raises MemoryRefusal when it does not fit, before loading anything.

    Safe to use from several threads: each call runs steps for everyone's sequences, one
    step at a time.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        revision: str | None = None,
        options: EngineOptions | None = None,
        **settings: Any,
    ) -> None:
        if options is not None and settings:
            raise TypeError(f"give options or keywords, not both: {', '.join(settings)}")
        options = options or EngineOptions(**settings)
        self.path = resolve_model(str(model), revision=revision).path
        self.model: LoadedModel = load_model(self.path, options)
        self.requests = RequestBuilder(self.path, self.model)
        self._core = EngineCore(self.model)
        self._lock = threading.Lock()
        self._dropped: deque[Sequence] = deque()
        self._closed = False

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The checkpoint's tokenizer; None when it has none."""
        return self.requests.tokenizer

    @property
    def max_model_len(self) -> int:
        """The longest sequence, prompt and output, in tokens."""
        return self.model.plan.max_model_len

    @property
    def num_free_blocks(self) -> int:
        """KV blocks that no sequence holds."""
        self.cancel([])
        return self._core.scheduler.blocks.num_free

    @property
    def num_running(self) -> int:
        """Sequences in the running batch."""
        self.cancel([])
        return len(self._core.scheduler.running)

    @property
    def num_preemptions(self) -> int:
        """How often a sequence gave its KV blocks to an older one and was computed again."""
        return self._core.scheduler.num_preemptions

    @property
    def num_draft_tokens(self) -> int:
        """Draft tokens that were verified."""
        return self._core.num_draft_tokens

    @property
    def num_accepted_tokens(self) -> int:
        """Draft tokens that were what the model said."""
        return self._core.num_accepted_tokens

    @overload
    def generate(self, prompts: str, params: SamplingParams | None = None) -> Completion: ...
    @overload
    def generate(self, prompts: Ids, params: SamplingParams | None = None) -> Completion: ...
    @overload
    def generate(
        self, prompts: list[str] | list[list[int]], params: SamplingParams | None = None
    ) -> list[Completion]: ...

    def generate(
        self,
        prompts: Prompt | list[str] | list[list[int]],
        params: SamplingParams | None = None,
    ) -> Completion | list[Completion]:
        """Complete one prompt, or several as one batch.

        A prompt is text or token ids. Raises ContextLengthError, before anything runs,
        when one does not fit.
        """
        if isinstance(prompts, np.ndarray):
            prompts = prompts.tolist()
        one = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
        batch: Any = [prompts] if one else prompts
        sequences = [s for p in batch for s in self.requests.build(p, params or SamplingParams())]
        self._add(sequences)
        try:
            for sequence in sequences:
                while sequence.finish_reason is None:
                    self.advance(sequence)
        finally:
            self.cancel(sequences)
        completions = [_completion(s) for s in sequences]
        return completions[0] if one else completions

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """Iterate over the chunks of a completion as they are generated.

        The prompt is checked at once. Closing the stream, or dropping it, cancels the
        sequence and frees its KV blocks.
        """
        (sequence,) = self.requests.build(prompt, params or SamplingParams())
        self._add([sequence])
        return Stream(self, sequence)

    def chat(
        self,
        messages: Seq[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **template_options: Any,
    ) -> Completion:
        """Complete a conversation with the checkpoint's chat template."""
        return self.generate(self.encode_chat(messages, **template_options), params)

    def encode_chat(self, messages: Seq[Mapping[str, Any]], **template_options: Any) -> list[int]:
        """Token ids of a conversation. Raises ChatTemplateError."""
        tokenizer = self.requests.need_tokenizer("give token ids")
        return tokenizer.encode_chat(messages, **template_options)

    def take_core(self) -> EngineCore:
        """Hand the core to one owner that makes the steps from now on; refuse everyone else."""
        with self._lock:
            if self._closed:
                raise EngineError("the engine was closed")
            self._closed = True
            return self._core

    def close(self) -> None:
        """Refuse further requests and fail the ones that run."""
        with self._lock:
            self._closed = True
            self._core.fail_all(EngineError("the engine was closed"))

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def advance(self, sequence: Sequence) -> None:
        """Run a step for everyone, unless another thread's brought this sequence a token."""
        seen = len(sequence.output_token_ids)
        with self._lock:
            if sequence.finish_reason is None and len(sequence.output_token_ids) == seen:
                self._step()

    def cancel(self, sequences: Seq[Sequence]) -> None:
        """End sequences that still run and free their blocks."""
        with self._lock:
            self._core.cancel([*sequences, *self._take_dropped()])

    def drop(self, sequence: Sequence) -> None:
        """Cancel a sequence at the next opportunity; safe where no lock may be taken."""
        if sequence.finish_reason is None:
            self._dropped.append(sequence)

    def _add(self, sequences: Seq[Sequence]) -> None:
        with self._lock:
            if self._closed:
                raise EngineError("the engine was closed")
            for sequence in sequences:
                self._core.add(sequence)

    def _take_dropped(self) -> list[Sequence]:
        return [self._dropped.popleft() for _ in range(len(self._dropped))]

    def _step(self) -> None:
        self._core.cancel(self._take_dropped())
        self._core.step()


def _raise_error(sequence: Sequence) -> None:
    if sequence.error is not None:
        raise sequence.error


def _completion(sequence: Sequence) -> Completion:
    _raise_error(sequence)
    chunks = list(sequence.chunks)
    logprobs = None
    if sequence.params.logprobs is not None:
        logprobs = [sampled for chunk in chunks for sampled in chunk.logprobs or []]
    return Completion(
        text="".join(chunk.text for chunk in chunks),
        token_ids=sequence.output_token_ids,
        finish_reason=sequence.finish_reason or "error",
        prompt_token_ids=sequence.prompt_token_ids,
        logprobs=logprobs,
        timing=sequence.timing,
    )
