"""The vocabulary part of a GGUF's metadata, checked: types, lengths and ids are untrusted."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken

from edge_infer.text.tokenizer import TokenizerError

PREFIX = "tokenizer.ggml."


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, numbered as in the GGUF specification."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Control tokens that end a turn or a document in the families we run. A GGUF names one end token
# only, while the model's generation_config.json often lists several.
_END_TOKENS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|end|>",
        "<end_of_turn>",
    }
)


@dataclass(frozen=True)
class SpecialTokenIds:
    """Ids for a generation_config.json; `eos` is every token that ends a generation."""

    bos: int | None
    eos: tuple[int, ...]
    pad: int | None
    unk: int | None


class GgufVocabulary:
    """The tokenizer part of a GGUF's metadata, checked."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.model = self.text("model")
        self.pre = self.text("pre") if PREFIX + "pre" in metadata else "default"
        self.tokens: list[str] = self._list("tokens", str)
        if len(set(self.tokens)) != len(self.tokens):
            raise TokenizerError(f"{PREFIX}tokens lists the same token more than once")
        types = self._list("token_type", int) if PREFIX + "token_type" in metadata else None
        self.types = types if types is not None else [TokenType.NORMAL] * len(self.tokens)
        self.same_length("token_type", self.types)

    def _get(self, name: str) -> Any:
        key = PREFIX + name
        if key not in self._metadata:
            raise TokenizerError(f"the GGUF metadata has no {key}")
        return self._metadata[key]

    def text(self, name: str) -> str:
        value = self._get(name)
        if not isinstance(value, str):
            raise TokenizerError(f"{PREFIX}{name} is {value!r}; a string is expected")
        return value

    def _list(self, name: str, kind: type) -> list[Any]:
        value = self._get(name)
        # numpy arrays are welcome; tolist() gives Python scalars
        items = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(items, Sequence) or isinstance(items, str):
            raise TokenizerError(f"{PREFIX}{name} is not a list")
        for index, item in enumerate(items):
            if not isinstance(item, kind):
                raise TokenizerError(
                    f"{PREFIX}{name}[{index}] is {item!r}; {kind.__name__} is expected"
                )
        return list(items)

    def same_length(self, name: str, values: Sequence[Any]) -> None:
        if len(values) != len(self.tokens):
            raise TokenizerError(
                f"{PREFIX}{name} has {len(values)} entries for {len(self.tokens)} tokens"
            )

    def flag(self, name: str, default: bool) -> bool:
        value = self._metadata.get(PREFIX + name, default)
        if not isinstance(value, bool):
            raise TokenizerError(f"{PREFIX}{name} is {value!r}; a boolean is expected")
        return value

    def scores(self) -> list[float]:
        scores = [float(score) for score in self._list("scores", (int, float))]  # type: ignore[arg-type]
        self.same_length("scores", scores)
        return scores

    def merges(self) -> list[tuple[str, str]]:
        pairs = []
        for index, merge in enumerate(self._list("merges", str)):
            left, _, right = merge.partition(" ")
            if not left or not right or " " in right:
                raise TokenizerError(f"{PREFIX}merges[{index}] is {merge!r}; two parts expected")
            pairs.append((left, right))
        return pairs

    def token_id(self, name: str) -> int | None:
        key = f"{PREFIX}{name}_token_id"
        if key not in self._metadata:
            return None
        value = self._metadata[key]
        if isinstance(value, bool) or not isinstance(value, int):
            raise TokenizerError(f"{key} is {value!r}; an integer is expected")
        # 2**32 - 1 is how writers spell "none" in this unsigned field
        if value == 2**32 - 1:
            return None
        if not 0 <= value < len(self.tokens):
            raise TokenizerError(f"{key} is {value}; the vocabulary has {len(self.tokens)} tokens")
        return value

    def special_ids(self) -> SpecialTokenIds:
        eos = {self.token_id(name) for name in ("eos", "eot", "eom")} - {None}
        eos |= {
            index
            for index, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind == TokenType.CONTROL and token in _END_TOKENS
        }
        unk = self.token_id("unknown")
        if unk is None and TokenType.UNKNOWN in self.types:
            unk = self.types.index(TokenType.UNKNOWN)
        first = self.token_id("eos")
        # the file's own end token comes first: it is the one tokenizer_config.json can name
        ordered = sorted((i for i in eos if i is not None), key=lambda i: (i != first, i))
        return SpecialTokenIds(self.token_id("bos"), tuple(ordered), self.token_id("padding"), unk)

    def added(self, *kinds: TokenType) -> Iterable[AddedToken]:
        special = TokenType.USER_DEFINED not in kinds
        for token, kind in zip(self.tokens, self.types, strict=True):
            if kind in kinds:
                yield AddedToken(token, normalized=False, special=special)

    def chat_template(self) -> str | None:
        template = self._metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) and template else None
