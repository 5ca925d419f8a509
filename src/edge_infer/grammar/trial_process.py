"""Compiles grammars that nobody trusts yet: a script for a process that may be lost.

llguidance bounds its work between steps, but one step can take exponential time and memory, and
long chains of references overflow the stack. Here that costs only this process.

Reads pickled objects from standard input: first (tokens, end ids, special ids, limits), then the
text of one grammar after another. Answers the first with None, a grammar with its `Outcome`.
"""

import os
import pickle
import re
import resource
import signal
import sys
import threading
from random import Random
from typing import Any

CPU_SECONDS = 1.0
MEMORY_BYTES = 512 << 20  # of addresses, beyond what the vocabulary takes
STACK_BYTES = 4 << 20  # half of what the server's threads have, which run the same work later

WALKED_TOKENS = 8
DRAWS = 4
_SET = re.compile(rb"[^\0]")
NOTHING = "NoExtension"  # llguidance's word for a grammar without any text

# (fault of the grammar or "", fault on the way through its texts or "")
Outcome = tuple[str, str]


class _Source:
    """What llguidance's TokenizerWrapper reads; cuts every text into tokens of a single byte."""

    def __init__(self, tokens: list[bytes], eos: list[int], special: list[int]) -> None:
        self.eos_token_id, self.bos_token_id = eos[0], None
        self.tokens, self.special_token_ids = tokens, special
        self._byte_tokens = {
            text[0]: token_id
            for token_id, text in enumerate(tokens)
            if len(text) == 1 and token_id not in special
        }

    def __call__(self, text: bytes) -> list[int]:
        return [self._byte_tokens[byte] for byte in text if byte in self._byte_tokens]


def _outcome(tokenizer: Any, tokens: list[bytes], grammar: str, limits: Any) -> Outcome:
    from llguidance import LLMatcher

    try:
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            return matcher.get_error(), ""
        return "", _walk(matcher, tokens)
    except ValueError as error:
        return str(error), ""
    except BaseException as error:  # a panic of Rust code derives from nothing narrower
        if type(error).__name__ != "PanicException":
            raise
        return f"llguidance failed: {error}", ""


def _walk(matcher: Any, tokens: list[bytes]) -> str:
    """What is wrong within the first tokens of a text, such as too many ways to go on."""
    random = Random(0)
    for step in range(WALKED_TOKENS):
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            return str(matcher.get_error())
        if matcher.is_stopped():
            # not in error, and yet without a text
            return "" if step or matcher.is_accepting() else NOTHING
        drawn = [_allowed(mask, random) for _ in range(DRAWS)]
        # white space leads nowhere
        token_id = next((drawn_id for drawn_id in drawn if tokens[drawn_id].strip()), drawn[0])
        matcher.consume_token(token_id)
    return ""


def _allowed(mask: bytes, random: Random) -> int:
    """Some token whose bit is set; one is."""
    start = random.randrange(len(mask))
    found = _SET.search(mask, start) or _SET.search(mask)
    assert found is not None
    bits = found[0][0]
    return found.start() * 8 + random.choice([bit for bit in range(8) if bits >> bit & 1])


def _bound_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as file:
        addresses = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    wanted = addresses + MEMORY_BYTES
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _answer(value: Any) -> None:
    pickle.dump(value, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def serve() -> None:
    """Answer until standard input ends."""
    from llguidance import LLParserLimits, LLTokenizer, TokenizerWrapper

    tokens, eos, special, limits = pickle.load(sys.stdin.buffer)
    tokenizer = LLTokenizer(
        TokenizerWrapper(_Source(tokens, eos, special)),
        n_vocab=len(tokens),
        eos_token=eos,
        slices=LLTokenizer.json_slices(),
    )
    _bound_memory()
    _answer(None)
    while True:
        try:
            grammar = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # whose signal ends this process
        outcome = _outcome(tokenizer, tokens, grammar, LLParserLimits(**limits))
        signal.setitimer(signal.ITIMER_PROF, 0)
        _answer(outcome)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends it, by closing its input
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
