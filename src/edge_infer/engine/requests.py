"""From a prompt and its parameters to a sequence, checked before it is queued."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge_infer.engine.errors import ContextLengthError, RequestError
from edge_infer.engine.kv_blocks import root_key
from edge_infer.engine.load import LoadedModel
from edge_infer.engine.prompt_lookup import PromptLookup
from edge_infer.engine.sampler import Sampler, bad_word_token_ids
from edge_infer.engine.sampling_params import SamplingParams
from edge_infer.engine.sequence import Sequence
from edge_infer.text.detokenizer import StreamDetokenizer
from edge_infer.text.load import load_tokenizer
from edge_infer.text.stops import StopChecker
from edge_infer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edge_infer.grammar import CompiledGrammar, GrammarCompiler

Ids = Seq[int] | NDArray[np.integer[Any]]
Prompt = str | Ids


class RequestBuilder:
    """Makes the sequences of one model. Safe to use from several threads."""

    def __init__(self, path: Path, model: LoadedModel) -> None:
        self._name = path.name
        self._model = model
        has_tokenizer = (path / "tokenizer.json").exists()
        self.tokenizer: Tokenizer | None = load_tokenizer(path) if has_tokenizer else None
        self._grammars: GrammarCompiler | None = None

    def build(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        n: int = 1,
        priority: int = 0,
        cache_salt: str = "",
    ) -> list[Sequence]:
        """The n sequences of a prompt; with a seed they have seed, seed + 1 and so on.

        Raises ContextLengthError, RequestError, GrammarError, and ValueError for token ids
        outside the vocabulary.
        """
        token_ids = self.token_ids(prompt)
        room = self._model.plan.max_model_len - len(token_ids)
        if room < 1 or (params.max_tokens or 0) > room:
            raise ContextLengthError(
                len(token_ids), params.max_tokens, self._model.plan.max_model_len
            )
        grammar = self._grammar(params)
        cache_key = root_key(cache_salt)
        sequences = []
        for index in range(n):
            seed = None if params.seed is None else (params.seed + index) % 2**64
            one = params if index == 0 else replace(params, seed=seed)
            sequence = self._sequence(prompt, token_ids, one, room, grammar)
            sequence.priority = priority
            sequence.cache_key = cache_key
            sequences.append(sequence)
        return sequences

    def build_embedding(self, token_ids: Seq[int]) -> Sequence:
        """A sequence that ends after its prompt, with the last token's hidden state."""
        (sequence,) = self.build(token_ids, SamplingParams(max_tokens=1, temperature=0.0))
        sequence.wants_hidden = True
        sequence.lookup = None
        return sequence

    def token_ids(self, prompt: Prompt) -> list[int]:
        """A prompt's token ids. Raises RequestError."""
        if isinstance(prompt, str):
            token_ids = self.need_tokenizer("give token ids").encode(prompt)
        else:
            token_ids = prompt.tolist() if isinstance(prompt, np.ndarray) else list(prompt)
        if not token_ids:
            raise RequestError("the prompt is empty: it has no tokens")
        vocab_size = self._model.spec.vocab_size
        for token in token_ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                raise RequestError(
                    f"the prompt has token id {token!r}; ids are integers of 0 to {vocab_size - 1}"
                )
        return token_ids

    def need_tokenizer(self, otherwise: str) -> Tokenizer:
        """The tokenizer. Raises RequestError when the model has none."""
        if self.tokenizer is None:
            raise RequestError(f"{self._name} has no tokenizer: {otherwise}")
        return self.tokenizer

    def _sequence(
        self,
        prompt: Prompt,
        token_ids: list[int],
        params: SamplingParams,
        room: int,
        grammar: CompiledGrammar | None,
    ) -> Sequence:
        tokenizer = self.tokenizer
        if params.bad_words:
            self.need_tokenizer("bad_words cannot be given")
        eos = tokenizer.eos_token_ids if tokenizer is not None else frozenset()
        sampler = Sampler(
            params,
            self._model.spec.vocab_size,
            eos,
            prompt_token_ids=token_ids,
            bad_word_ids=bad_word_token_ids(params.bad_words, tokenizer) if tokenizer else (),
            matcher=None if grammar is None else grammar.matcher(),
        )
        max_draft = self._model.options.num_speculative_tokens
        ends = set(params.stop_token_ids) | (set() if params.ignore_eos else eos)
        detokenizer = None
        if tokenizer is not None:
            detokenizer = StreamDetokenizer(
                tokenizer,
                skip_special_tokens=params.skip_special_tokens,
                continues=isinstance(prompt, str),
            )
        return Sequence(
            prompt_token_ids=token_ids,
            params=params,
            max_tokens=room if params.max_tokens is None else params.max_tokens,
            sampler=sampler,
            detokenizer=detokenizer,
            stops=StopChecker(
                params.stop, include_stop_str_in_output=params.include_stop_str_in_output
            ),
            end_token_ids=frozenset(ends),
            lookup=PromptLookup(max_draft) if max_draft else None,
        )

    def _grammar(self, params: SamplingParams) -> CompiledGrammar | None:
        if params.structured_outputs is None:
            return None
        if self._grammars is None:
            from edge_infer.grammar import GrammarCompiler  # imported by those who use it

            tokenizer = self.need_tokenizer("structured_outputs cannot be given")
            self._grammars = GrammarCompiler(tokenizer, self._model.spec.vocab_size)
        return self._grammars.compile(params.structured_outputs)
