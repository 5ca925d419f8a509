"""What the clients of a soak ask, how some of them leave early, and how answers are judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from harness.http_client import Exchange, HangUp, ResponseError
from harness.replies import Reply, read_reply

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
SALT_RANGE = 1 << 62
KEPT_FAILURES = 20
PREFIX_TOKENS = (256, 40)  # a multiple of any block size, and none
# What chats talk about; a client's message is one of the requests about some of the things.
THINGS = ("rivers", "old clocks", "bread", "the moon", "trains", "bees", "maps", "rain", "chess")
REQUESTS = (
    "Tell me about {}.",
    "Write a short poem about {}.",
    "List five facts about {} and explain each of them in a sentence.",
    "¿Qué sabes de {}?",
    "Continue: once upon a time there were {} and",
)
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a patient guide in a museum. " + "Answer briefly and in plain words. " * 12,
)

Outcome = Literal["completed", "disconnected", "failed", "differing"]


@dataclass(frozen=True)
class Question:
    """A request body without `stream`, and where it is sent.

    Attributes:
        kind: for the report, such as "chat" or "completion n=2".
        exact_tokens: of all choices together, or None where an answer ends by itself.
    """

    kind: str
    path: str
    body: dict[str, Any]
    exact_tokens: int | None

    @property
    def choices(self) -> int:
        """How many answers are asked for."""
        return int(self.body.get("n", 1))


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
        known: index of a question whose answer is known, or None for a new one.
        hang_up: when the client leaves, or None.
    """

    known: int | None
    question: Question
    body: dict[str, Any]
    hang_up: HangUp | None

    @property
    def stream(self) -> bool:
        """Whether the answer comes as events."""
        return bool(self.body["stream"])


def _log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    """Return an integer in [low, high), short ones more often than long ones."""
    return min(int(np.exp(rng.uniform(np.log(low), np.log(high)))), high - 1)


def question(rng: np.random.Generator, lengths: Lengths, model: str) -> Question:
    """Return a random greedy question: one in three a chat, one in eight with n=2.

    A third of the completions begin with one of a few prefixes, all chats with one of two system
    messages.
    """
    n = 2 if rng.random() < 0.125 else 1
    n_gen = _log_uniform(rng, *lengths.n_gen)
    body: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": n_gen}
    if n > 1:
        body["n"] = n
    suffix = f" n={n}" if n > 1 else ""
    if rng.random() < 1 / 3:
        asked = str(rng.choice(REQUESTS)).format(" and ".join(rng.choice(THINGS, 2).tolist()))
        body["messages"] = [
            {"role": "system", "content": str(rng.choice(SYSTEMS))},
            {"role": "user", "content": asked},
        ]
        return Question(f"chat{suffix}", CHAT, body, None)
    own = rng.integers(*lengths.token, size=_log_uniform(rng, *lengths.prompt))
    shared = np.empty(0, np.int64)
    if rng.random() < 1 / 3:
        length = int(rng.choice(PREFIX_TOKENS))
        shared = np.random.default_rng(length).integers(*lengths.token, size=length)
    prompt = [*shared.tolist(), *own.tolist()][: lengths.prompt[1] - 1]
    body |= {"prompt": prompt, "ignore_eos": True}
    return Question(f"completion{suffix}", COMPLETIONS, body, n * n_gen)


def request_body(asked: Question, stream: bool, salt: str | None) -> dict[str, Any]:
    """Return the body to send; prompts under different salts share no computed blocks."""
    body = {**asked.body, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    if salt is not None:
        body["cache_salt"] = salt
    return body


def visit(
    rng: np.random.Generator,
    questions: Sequence[Question],
    lengths: Lengths,
    model: str,
    disconnect: float,
) -> Visit:
    """Return what a client does next.

    Three of four requests ask a known question, half of them under a cache salt of their own, so
    that the prompt is computed again beside others; the rest are new and sampled.
    """
    known = int(rng.integers(len(questions))) if rng.random() < 0.75 else None
    asked = questions[known] if known is not None else question(rng, lengths, model)
    salt = str(rng.integers(SALT_RANGE)) if rng.random() < 0.5 else None
    body = request_body(asked, bool(rng.random() < 0.5), salt)
    if known is None:
        body |= {"temperature": 1.0, "seed": int(rng.integers(1 << 32))}
    leaves = rng.random() < disconnect
    tokens = asked.body["max_tokens"]
    return Visit(known, asked, body, hang_up(rng, body["stream"], tokens) if leaves else None)


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
    """Outcomes of all requests; messages of the first failures are kept.

    Attributes:
        compared: answers compared with the one given alone, by kind of question.
        seconds: how long each completed request took.
        first_seconds: from sending to the first event with text, of the streamed ones.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    generated_tokens: int = 0
    seconds: list[float] = field(default_factory=list)
    first_seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def note(self, outcome: Outcome, message: str = "") -> None:
        """Count an outcome; `message` tells what went wrong."""
        self.outcomes[outcome] += 1
        if message and len(self.failures) < KEPT_FAILURES:
            self.failures.append(message)


def check_reply(reply: Reply, asked: Question) -> str | None:
    """Return what makes a reply another than was asked for, or None."""
    if len(reply.texts) != asked.choices:
        return f"{len(reply.texts)} choices, asked for {asked.choices}"
    tokens = reply.usage["completion_tokens"]
    if asked.exact_tokens is None:
        return None if None not in reply.reasons else f"finish reasons are {reply.reasons}"
    if tokens != asked.exact_tokens or set(reply.reasons) != {"length"}:
        return f"{tokens} tokens, ended by {reply.reasons}, asked for {asked.exact_tokens}"
    return None


def difference(reply: Reply, alone: Reply) -> str | None:
    """Return how the choices, their ends or the usage differ from the reply given alone."""
    for index, (got, wanted) in enumerate(zip(reply.texts, alone.texts, strict=True)):
        if got != wanted:
            ends = min(len(got), len(wanted))
            at = next((i for i in range(ends) if got[i] != wanted[i]), ends)
            return (
                f"choice {index} from character {at}: {got[at : at + 40]!r}, "
                f"alone {wanted[at : at + 40]!r}"
            )
    if reply.reasons != alone.reasons:
        return f"finish reasons {reply.reasons}, alone {alone.reasons}"
    for name in ("prompt_tokens", "completion_tokens"):
        if reply.usage[name] != alone.usage[name]:
            return f"{name} is {reply.usage[name]}, alone {alone.usage[name]}"
    return None


def judge(done: Exchange, made: Visit, alone: Sequence[Reply], tally: Tally) -> None:
    """Count what came of one request, comparing greedy answers with the ones given alone."""
    if done.hung_up and done.error is None:
        tally.note("disconnected")
        return
    kind = made.question.kind
    try:
        reply = read_reply(done, made.stream)
        wrong = check_reply(reply, made.question)
        tally.generated_tokens += reply.usage["completion_tokens"]
    except (ResponseError, KeyError) as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong is not None:
        tally.note("failed", f"{kind}: {wrong}")
        return
    tally.seconds.append(done.ended - done.sent)
    if reply.arrivals:
        tally.first_seconds.append(reply.arrivals[0] - done.sent)
    if made.known is not None:
        tally.compared[kind] += 1
        differs = difference(reply, alone[made.known])
        if differs is not None:
            tally.note("differing", f"question {made.known}, {kind}, {made.stream=}: {differs}")
            return
    tally.note("completed")
