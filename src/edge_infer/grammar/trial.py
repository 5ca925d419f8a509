"""Grammars are tried in a process of their own before they are compiled in this one."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from edge_infer.grammar.errors import GrammarError
from edge_infer.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from edge_infer.grammar.trial_process import Outcome

_SCRIPT = Path(__file__).with_name("trial_process.py")


class Trial:
    """Tells whether grammars compile within bounds on time and memory, and what is wrong.

    The process starts at once, gets ready beside the caller, and is replaced after a loss.
    Any number of threads may use it; one grammar is tried at a time.
    """

    def __init__(self, vocabulary: Vocabulary, limits: dict[str, Any]) -> None:
        self._first = pickle.dumps(
            (vocabulary.token_bytes, vocabulary.eos_token_ids, vocabulary.special_token_ids, limits)
        )
        self._lock = threading.Lock()
        self._process = _Process()
        self._ready = False

    def outcome(self, grammar: str) -> Outcome:
        """Fault of `grammar`, and if it has none, one met on the way; "" for no fault.

        Raises GrammarError when the trial takes more time or memory than it may.
        """
        with self._lock:
            try:
                if not self._ready:
                    self._process.ask(self._first)
                    self._ready = True
                answer: Outcome = self._process.ask(pickle.dumps(grammar))
            except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
                was_ready, self._ready = self._ready, False
                self._process.end()
                self._process = _Process()
                if not was_ready:
                    raise RuntimeError("the process that tries grammars does not start") from error
                raise GrammarError(
                    "the grammar is too costly: compiling it exceeds the limits on time, memory "
                    "or depth"
                ) from error
            return answer


class _Process:
    """The script, running; it ends with this object."""

    def __init__(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._input: IO[bytes] = process.stdin
        self._output: IO[bytes] = process.stdout
        self.end = weakref.finalize(self, _end, process)

    def ask(self, message: bytes) -> Any:
        """Send a pickled object and return the answer."""
        self._input.write(message)
        self._input.flush()
        return pickle.load(self._output)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        try:
            if pipe is not None:
                pipe.close()
        except BrokenPipeError:
            pass  # what was left to write is of no use to a process that is gone
    process.wait()
