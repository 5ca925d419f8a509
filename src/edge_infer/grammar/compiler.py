"""From what a request asks to masks over the vocabulary, by way of llguidance."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edge_infer.grammar.errors import GrammarError
from edge_infer.grammar.faults import reworded
from edge_infer.grammar.matcher import Matcher
from edge_infer.grammar.opening import Opening
from edge_infer.grammar.outputs import StructuredOutputs
from edge_infer.grammar.schema import checked_schema, explain_fault
from edge_infer.grammar.trial import Trial
from edge_infer.grammar.vocabulary import Vocabulary
from edge_infer.text import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_TEXT_BYTES = 64 << 10  # of a regular expression, a grammar, or all choices together
MAX_AFTER_BYTES = 1 << 10
CACHED_GRAMMARS = 64
# JSON's white space, but not without end: small models like to fill a page with it
_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,64}"
# bounds on the work for one grammar and for one token, in llguidance's units
_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 5_000_000,  # about 100 ms
    "step_lexer_fuel": 200_000,  # about 14 ms
    "step_max_items": 50_000,
    "max_lexer_states": 100_000,  # 1 to 2 kB each
    "max_grammar_size": 200_000,
    "verbose_errors": False,  # they would quote the whole grammar
}
_PUNCTUATION = re.compile("[!-/:-@\\[-`{-~]")  # some of it operates in regular expressions


class CompiledGrammar:
    """A grammar over one vocabulary, from which any number of sequences take a matcher."""

    def __init__(self, vocabulary: Vocabulary, start: LLMatcher, opening: Opening | None) -> None:
        self._vocabulary = vocabulary
        self._start = start
        self._opening = opening

    def matcher(self) -> Matcher:
        """A matcher at the beginning of the text."""
        return Matcher(self._vocabulary, self._start.deep_copy(), self._opening)


class GrammarCompiler:
    """Compiles grammars for one tokenizer and a model with `vocab_size` logits.

    Keeps the last ones it made. Any number of threads may use it.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._vocabulary: tuple[Vocabulary, LLTokenizer, Trial] | None = None
        self._cache: OrderedDict[str, CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, outputs: StructuredOutputs) -> CompiledGrammar:
        """The grammar for `outputs`; may take as long as a second, the first one longer.

        Raises GrammarError, which names the keyword or position that is wrong or not supported.
        """
        try:
            key = outputs.cache_key()
        except (TypeError, ValueError, RecursionError) as error:
            raise GrammarError(f"json_schema is not JSON: {error}") from error
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        vocabulary, tokenizer, trial = self._load()
        start = _guarded(lambda: _start(outputs, tokenizer, trial))
        opening = None
        if outputs.after is not None:
            _check_size("after", outputs.after, MAX_AFTER_BYTES)
            opening = Opening(outputs.after, vocabulary, start)
        compiled = CompiledGrammar(vocabulary, start, opening)
        with self._lock:
            self._cache[key] = compiled
            while len(self._cache) > CACHED_GRAMMARS:
                self._cache.popitem(last=False)
        return compiled

    def _load(self) -> tuple[Vocabulary, LLTokenizer, Trial]:
        with self._lock:
            if self._vocabulary is None:
                vocabulary = Vocabulary(self._tokenizer, self._vocab_size)
                trial = Trial(vocabulary, _LIMITS)
                self._vocabulary = vocabulary, vocabulary.for_llguidance(), trial
            return self._vocabulary


def _start(outputs: StructuredOutputs, tokenizer: LLTokenizer, trial: Trial) -> LLMatcher:
    """llguidance's matcher before the first token."""
    form = outputs.form
    if outputs.json_schema is not None:
        schema = checked_schema(outputs.json_schema)
        source = _from_schema(schema)
        fault, nothing = trial.outcome(source)
        if fault:
            where = explain_fault(schema, lambda part: trial.outcome(_from_schema(part))[0])
            raise GrammarError(f"json_schema at {where}")
    else:
        source = _source(outputs)
        fault, nothing = trial.outcome(source)
        if fault:
            raise GrammarError(f"{form}: {reworded(fault, with_position=form == 'grammar')}")
    if nothing:
        raise GrammarError(f"{form}: {reworded(nothing)}")
    matcher = _matcher(tokenizer, source)
    if matcher.is_error():
        raise GrammarError(f"{form}: {reworded(matcher.get_error())}")
    if warnings := matcher.get_grammar_warnings():
        raise GrammarError(f"{form}: {'; '.join(map(reworded, warnings))}")
    return matcher


def _source(outputs: StructuredOutputs) -> str:
    from llguidance import LLMatcher

    if outputs.json_object:
        return _from_schema({"type": "object"})
    if outputs.regex is not None:
        _check_size("regex", outputs.regex, MAX_TEXT_BYTES)
        return LLMatcher.grammar_from_regex(outputs.regex)
    if outputs.choice is not None:
        _check_size("choice", "".join(outputs.choice), MAX_TEXT_BYTES)
        return LLMatcher.grammar_from_regex("|".join(map(_literally, outputs.choice)))
    assert outputs.grammar is not None
    _check_size("grammar", outputs.grammar, MAX_TEXT_BYTES)
    return LLMatcher.grammar_from_lark(outputs.grammar)


def _literally(text: str) -> str:
    """A regular expression for `text` alone."""
    return _PUNCTUATION.sub(lambda mark: f"\\x{ord(mark[0]):02x}", text)


def _from_schema(schema: Any) -> str:
    import json

    from llguidance import LLMatcher

    try:
        return LLMatcher.grammar_from_json_schema(
            json.dumps(schema), overrides={"whitespace_pattern": _WHITESPACE, "lenient": False}
        )
    except ValueError as error:
        raise GrammarError(f"json_schema: {error}") from error


def _matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits

    return LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**_LIMITS))


def _check_size(name: str, text: str, limit: int) -> None:
    size = len(text.encode())
    if size > limit:
        raise GrammarError(f"{name} has {size} bytes; it must have at most {limit}")


def _guarded(work: Callable[[], LLMatcher]) -> LLMatcher:
    """`work()`, with a panic of llguidance's Rust code as a GrammarError."""
    try:
        return work()
    except BaseException as error:  # a panic derives from nothing narrower
        if type(error).__name__ != "PanicException":
            raise
        raise GrammarError(f"the grammar cannot be compiled: {error}") from error
