"""Text to token ids and back, over the `tokenizers` library."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from edge_infer.text.chat_template import ChatTemplate, ChatTemplateError

_SPACE = "\u2581"  # how SentencePiece spells a space
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


class TokenizerError(ValueError):
    """The tokenizer files are missing, damaged or not supported, or a text is not Unicode."""


def _byte_level_alphabet() -> dict[str, int]:
    """Character to byte of GPT-2's byte-level BPE: printable bytes stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


BYTE_LEVEL_ALPHABET: Mapping[str, int] = _byte_level_alphabet()


class Tokenizer:
    """A checkpoint's tokenizer, with what the engine must know about its special tokens.

    `eos_token_ids` are all tokens that end a generation: those of generation_config.json (or
    config.json when it has none) and the tokenizer's own. `vocab_size` is the highest id plus one;
    a model's embedding may be padded beyond it, and such ids decode to nothing.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        eos_token_ids: Sequence[int] = (),
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        self.backend = backend
        self.special_tokens = dict(special_tokens or {})
        self.chat_templates = dict(chat_templates or {})
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        self.pad_token_id = self._named_id("pad_token")
        own = set() if self.eos_token_id is None else {self.eos_token_id}
        self.eos_token_ids: frozenset[int] = frozenset(own.union(eos_token_ids))
        added = backend.get_added_tokens_decoder()
        self.special_token_ids: frozenset[int] = frozenset(
            token_id for token_id, token in added.items() if token.special
        )
        # added tokens may leave holes, so the count is not enough
        self.vocab_size: int = max(backend.get_vocab_size(), max(added, default=-1) + 1)
        self._byte_decoder = _byte_decoder(backend)
        self._bytes_of: dict[int, bytes] = {}

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.backend.token_to_id(token)

    @property
    def chat_template(self) -> str | None:
        """Source of the default chat template, if there is one."""
        return self.chat_templates.get("default")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; special tokens spelled out in it become their ids.

        `add_special_tokens` adds what the tokenizer itself puts around a text (BOS, EOS). Leave it
        off for the output of a chat template, which writes them itself. Raises TokenizerError for
        text that is not Unicode (a lone surrogate).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"the text is not Unicode: {text[error.start]!r} at character {error.start}"
            ) from error
        ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; bytes that are not UTF-8 become U+FFFD.

        As `tokenizers` decodes, except that one invalid byte among SentencePiece byte tokens does
        not turn its valid neighbours into U+FFFD too.
        """
        if self._byte_decoder is None:
            text: str = self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
            return text
        skipped = self.special_token_ids if skip_special_tokens else frozenset()
        pieces = [self.token_bytes(token_id) for token_id in token_ids if token_id not in skipped]
        joined = b"".join(pieces)
        if self.strips_leading_space:
            joined = joined.removeprefix(b" ")
        return joined.decode("utf-8", errors="replace")

    @property
    def decodes_by_bytes(self) -> bool:
        """Whether a text is the plain concatenation of `token_bytes` of its tokens."""
        return self._byte_decoder is not None

    @property
    def strips_leading_space(self) -> bool:
        """Whether decoding drops the space SentencePiece puts before the first word."""
        return self._byte_decoder == "sentencepiece-strip"

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for; empty for an id that is not in the vocabulary."""
        known = self._bytes_of.get(token_id)
        if known is None:
            known = self._bytes_of[token_id] = self._compute_bytes(token_id)
        return known

    def _compute_bytes(self, token_id: int) -> bytes:
        token: str | None = self.backend.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            return b""
        if self._byte_decoder == "byte-level":
            # a token with any character outside the alphabet is spelled literally
            values = [BYTE_LEVEL_ALPHABET.get(character) for character in token]
            known = [value for value in values if value is not None]
            return bytes(known) if len(known) == len(values) else token.encode()
        if self._byte_decoder is None:
            return self.backend.decode([token_id], skip_special_tokens=False).encode()
        if byte := _BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(byte[1])
        return token.replace(_SPACE, " ").encode()

    def token_id(self, token: str) -> int | None:
        """Id of a token given as the vocabulary spells it."""
        found: int | None = self.backend.token_to_id(token)
        return found

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        **variables: Any,
    ) -> str:
        """The prompt text for a conversation.

        `chat_template` is a template's source or the name of one of the checkpoint's; by default
        `tool_use` when there are tools and such a template, else `default`. Other keywords become
        variables of the template. Raises ChatTemplateError.
        """
        template = self._chat_template(chat_template, with_tools=tools is not None)
        return template.render(
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            **{**self.special_tokens, **variables},
        )

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Token ids of `apply_chat_template(messages, **options)`, with no BOS added twice."""
        return self.encode(self.apply_chat_template(messages, **options), add_special_tokens=False)

    def _chat_template(self, chosen: str | None, *, with_tools: bool) -> ChatTemplate:
        if chosen is None:
            chosen = "tool_use" if with_tools and "tool_use" in self.chat_templates else "default"
            if chosen not in self.chat_templates:
                raise ChatTemplateError(
                    f"this checkpoint has no {chosen!r} chat template; it has: "
                    f"{', '.join(sorted(self.chat_templates)) or 'none'}"
                )
        return ChatTemplate(self.chat_templates.get(chosen, chosen))


def _byte_decoder(backend: tokenizers.Tokenizer) -> str | None:
    """Which rule gives a token's bytes, or None when a token's text depends on its neighbours."""
    if backend.decoder is None:
        return None
    state = json.loads(backend.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return "byte-level"
    if kinds[:3] != ["Replace", "ByteFallback", "Fuse"]:
        return None
    if steps[0]["pattern"] != {"String": _SPACE} or steps[0]["content"] != " ":
        return None
    if kinds[3:] == []:
        return "sentencepiece"
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return "sentencepiece-strip" if steps[3:] == [strip] else None
