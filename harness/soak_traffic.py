"""What the clients of a soak ask, how some of them leave early, and how answers are judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from harness.http_client import Exchange, HangUp, ResponseError
from harness.traffic import Completion, read_stream, read_whole

SALT_RANGE = 1 << 62
KEPT_FAILURES = 20

Outcome = Literal["completed", "disconnected", "failed", "differing"]


@dataclass(frozen=True)
class Question:
    """A prompt of token ids and the number of tokens to answer with."""

    prompt: list[int]
    n_gen: int


@dataclass(frozen=True)
class Lengths:
    """Ranges of prompt and answer lengths in tokens and of random token ids, ends excluded."""

    prompt: tuple[int, int]
    n_gen: tuple[int, int]
    token: tuple[int, int]


@dataclass(frozen=True)
class Visit:
    """One request of a client.

    Attributes:
        known: index of a question whose answer is known, or None for a new, sampled one.
        hang_up: when the client leaves, or None.
    """

    known: int | None
    body: dict[str, Any]
    hang_up: HangUp | None

    @property
    def stream(self) -> bool:
        """Whether the answer comes as events."""
        return bool(self.body["stream"])


def _log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    """Return an integer in [low, high), short ones more often than long ones."""
    return min(int(np.exp(rng.uniform(np.log(low), np.log(high)))), high - 1)


def question(rng: np.random.Generator, lengths: Lengths) -> Question:
    """Return a random question."""
    count = _log_uniform(rng, *lengths.prompt)
    prompt = rng.integers(*lengths.token, size=count).tolist()
    return Question(prompt, _log_uniform(rng, *lengths.n_gen))


def completion_request(asked: Question, model: str, stream: bool) -> dict[str, Any]:
    """Return a greedy completions request."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": asked.prompt,
        "max_tokens": asked.n_gen,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }
    return body | ({"stream_options": {"include_usage": True}} if stream else {})


def visit(
    rng: np.random.Generator,
    questions: Sequence[Question],
    lengths: Lengths,
    model: str,
    disconnect: float,
) -> Visit:
    """Return what a client does next.

    Three of four requests ask a known question greedily, half of them under a cache salt of their
    own, so that the prompt is computed again beside others; the rest are new and sampled.
    """
    known = int(rng.integers(len(questions))) if rng.random() < 0.75 else None
    asked = questions[known] if known is not None else question(rng, lengths)
    body = completion_request(asked, model, stream=bool(rng.random() < 0.5))
    if known is None:
        body |= {"temperature": 1.0, "seed": int(rng.integers(1 << 32))}
    elif rng.random() < 0.5:
        body |= {"cache_salt": str(rng.integers(SALT_RANGE))}
    leaves = rng.random() < disconnect
    return Visit(known, body, hang_up(rng, body["stream"], asked.n_gen) if leaves else None)


def hang_up(rng: np.random.Generator, stream: bool, n_gen: int) -> HangUp:
    """Return when to leave: at once, while waiting or in prefill, or among the tokens."""
    abort = bool(rng.random() < 0.5)
    kind = rng.integers(3)
    if kind == 0:
        return HangUp(after_seconds=float(rng.uniform(0.0, 0.02)), abort=abort)
    if kind == 1 or not stream:
        return HangUp(after_seconds=float(rng.uniform(0.02, 5.0)), abort=abort)
    # The head and the first event are a segment or two.
    return HangUp(after_segments=int(rng.integers(1, n_gen + 1)), abort=abort)


@dataclass
class Tally:
    """Outcomes of all requests; messages of the first failures are kept."""

    outcomes: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    generated_tokens: int = 0
    failures: list[str] = field(default_factory=list)

    def note(self, outcome: Outcome, message: str = "") -> None:
        """Count an outcome; `message` tells what went wrong."""
        self.outcomes[outcome] += 1
        if message and len(self.failures) < KEPT_FAILURES:
            self.failures.append(message)


def read_completion(done: Exchange, stream: bool) -> Completion:
    """Return the answer; ResponseError if there is no complete one."""
    return read_stream(done) if stream else read_whole(done)


def judge(done: Exchange, made: Visit, answers: Sequence[Completion], tally: Tally) -> None:
    """Count what came of one request, comparing greedy answers with the ones given alone."""
    if done.hung_up and done.error is None:
        tally.note("disconnected")
        return
    try:
        got = read_completion(done, made.stream)
        tokens = got.usage["completion_tokens"]
    except (ResponseError, KeyError) as error:
        tally.note("failed", f"{type(error).__name__}: {error}")
        return
    tally.generated_tokens += tokens
    if tokens != made.body["max_tokens"] or got.reason != "length":
        wanted = made.body["max_tokens"]
        tally.note("failed", f"{tokens} tokens, ended by {got.reason!r}, asked for {wanted}")
        return
    if made.known is not None:
        tally.compared += 1
        alone = answers[made.known].text
        if got.text != alone:
            at = next(
                (i for i, (a, b) in enumerate(zip(got.text, alone, strict=False)) if a != b),
                min(len(got.text), len(alone)),
            )
            tally.note(
                "differing",
                f"question {made.known}: from character {at} {got.text[at : at + 40]!r}, "
                f"alone {alone[at : at + 40]!r}",
            )
            return
    tally.note("completed")
