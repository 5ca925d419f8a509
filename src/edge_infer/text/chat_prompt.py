"""The prompt of a conversation in which special tokens are only what the template wrote."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from edge_infer.text.tokenizer import Tokenizer

# What a model says itself, and its template looks for.
_OF_ASSISTANT = frozenset({"<think>", "</think>"})
_MARK = "\x02"  # a token of its own in every vocabulary that has it
_JOINER = "\u2060"


@dataclass(frozen=True)
class ChatPrompt:
    """A prompt, as text and as tokens."""

    text: str
    token_ids: list[int]


def encode_chat_prompt(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **options: Any,
) -> ChatPrompt:
    """`Tokenizer.apply_chat_template` and its tokens.

    A special token that is spelled out in a message or a tool, such as a user's `<|im_end|>`, is
    text like any other and never becomes that token. Where a template has changed such a text so
    that it cannot be found again, a word joiner (U+2060) breaks it up. Raises ChatTemplateError
    and TokenizerError.
    """

    text = tokenizer.apply_chat_template(messages, tools, **options)
    special = _special_pattern(tokenizer)
    if special is None or not any(map(special.search, _strings([messages, tools]))):
        return ChatPrompt(text, tokenizer.encode(text, add_special_tokens=False))

    def render(replaced: Callable[[str], str]) -> str:
        """The prompt with every special token in the texts replaced."""

        def change(text: str, of_assistant: bool) -> str:
            kept = _OF_ASSISTANT if of_assistant else frozenset()
            return special.sub(lambda m: m[0] if m[0] in kept else replaced(m[0]), text)

        changed_tools = None if tools is None else _changed(tools, change, False)
        changed = [_changed_message(message, change) for message in messages]
        return tokenizer.apply_chat_template(changed, changed_tools, **options)

    # A name in the place of each tells where it has gone.
    tokens: list[str] = []
    nonce = f"x{secrets.token_hex(8)}x"

    def named(token: str) -> str:
        tokens.append(token)
        return f"{nonce}{len(tokens) - 1}x"

    restored, spans = _restored(render(named), nonce, tokens)
    if restored == text:
        return ChatPrompt(text, _encode(tokenizer, text, spans))
    text = render(lambda token: f"{token[:1]}{_JOINER}{token[1:]}")
    return ChatPrompt(text, tokenizer.encode(text, add_special_tokens=False))


@lru_cache(maxsize=8)
def _special_pattern(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Finds what is spelled like a special token, the longest first."""
    added = tokenizer.backend.get_added_tokens_decoder()
    spelled = [added[i].content for i in tokenizer.special_token_ids if added[i].content]
    if not spelled:
        return None
    # What all begin with comes first: the search is many times faster with it.
    first = os.path.commonprefix(spelled)  # noqa: RUF071 (characters are meant)
    rest = "|".join(re.escape(text[len(first) :]) for text in sorted(spelled, key=len)[::-1])
    return re.compile(f"{re.escape(first)}(?:{rest})")


def _strings(value: Any) -> Iterator[str]:
    """All texts in JSON-like data, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _changed_message(
    message: Mapping[str, Any], change: Callable[[str, bool], str]
) -> dict[str, Any]:
    of_assistant = message.get("role") == "assistant"
    return {
        key: value if key == "role" else _changed(value, change, of_assistant)
        for key, value in message.items()
    }


def _changed(value: Any, change: Callable[[str, bool], str], of_assistant: bool) -> Any:
    """JSON-like data with all its texts changed."""
    if isinstance(value, str):
        return change(value, of_assistant)
    if isinstance(value, Mapping):
        return {
            change(key, of_assistant): _changed(item, change, of_assistant)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_changed(item, change, of_assistant) for item in value]
    return value


def _restored(text: str, nonce: str, tokens: list[str]) -> tuple[str, list[tuple[int, int]]]:
    """`text` with the tokens for their names, and where they are."""
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    length = end = 0
    for match in re.finditer(f"{nonce}([0-9]+)x", text):
        token = tokens[int(match[1])]
        pieces += [text[end : match.start()], token]
        length += match.start() - end
        spans.append((length, length + len(token)))
        length += len(token)
        end = match.end()
    return "".join([*pieces, text[end:]]), spans


def _encode(tokenizer: Tokenizer, text: str, spans: list[tuple[int, int]]) -> list[int]:
    """Tokens of `text`, whose spans [(start, end)], ascending, are no special tokens."""
    tokenizer.encode(text, add_special_tokens=False)  # refuses what is not Unicode
    encoding = tokenizer.backend.encode(text, add_special_tokens=False)
    token_ids: list[int] = []
    remaining = iter(spans)
    span = next(remaining, None)
    for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        while span is not None and span[1] <= start:
            span = next(remaining, None)
        if span is not None and span[0] < end and token_id in tokenizer.special_token_ids:
            token_ids += _plain(tokenizer, text[start:end])
        else:
            token_ids.append(token_id)
    return token_ids


def _plain(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokens of a text that is spelled like a special token, in the middle of another text."""
    half = len(text) // 2
    return [i for piece in (text[:half], text[half:]) if piece for i in _inside(tokenizer, piece)]


def _inside(tokenizer: Tokenizer, text: str) -> list[int]:
    # SentencePiece puts a space before the first word: let something else come first
    for first in ("", _MARK):
        token_ids = tokenizer.encode(first + text, add_special_tokens=False)
        dropped = b""
        while token_ids and len(dropped.lstrip(b" ")) < len(first):
            dropped += tokenizer.token_bytes(token_ids.pop(0))
        if b"".join(map(tokenizer.token_bytes, token_ids)) == text.encode():
            break
    if tokenizer.special_token_ids.isdisjoint(token_ids):
        return token_ids
    return _plain(tokenizer, text) if len(text) > 1 else []
