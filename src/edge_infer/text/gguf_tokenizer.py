"""Build a tokenizer from the metadata of a GGUF file.

A GGUF carries no tokenizer.json: it lists the vocabulary, the merges or scores, the kind of each
token and the name of the pre-tokenizer. From these a `tokenizers.Tokenizer` is rebuilt and saved
beside the converted checkpoint, so that nothing downstream knows where it came from.

The rules are those of the GGUF specification (ggml docs/gguf.md) and of llama.cpp's vocabulary
loader. Where the two references at hand differ, llama.cpp's rule is taken, because it is the one
that reproduces the model's own tokenizer.json: digits are split before whitespace for `smollm`,
whole-word lookup comes before merges for `llama-bpe`, and a SentencePiece text gets its leading
space after every special token. Qwen's NFC normalization is not recorded in a GGUF and not applied.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from edge_infer.text.gguf_vocabulary import PREFIX, GgufVocabulary, SpecialTokenIds, TokenType
from edge_infer.text.tokenizer import TokenizerError

_SPACE = "\u2581"  # how SentencePiece spells a space


@dataclass(frozen=True)
class PreTokenizer:
    """How a byte-level vocabulary cuts text before merging.

    `splits` are applied one after the other, each to the pieces the one before left.
    """

    splits: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = PreTokenizer(
    splits=(
        _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _BLANKS,
    ),
    ignore_merges=True,
    add_bos=True,
)
_QWEN2 = PreTokenizer(
    splits=(
        _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _BLANKS,
    ),
)
_TEKKEN = PreTokenizer(
    splits=(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _BLANKS,
    ),
    ignore_merges=True,
    add_bos=True,
)
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer(splits=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer(splits=(_GPT2,)),
    "smollm": PreTokenizer(splits=(r"\p{N}", _GPT2)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}


def tokenizer_from_gguf(metadata: Mapping[str, Any], out_dir: Path) -> SpecialTokenIds:
    """Write tokenizer.json and tokenizer_config.json for the tokenizer `metadata` describes.

    `metadata` maps GGUF keys ("tokenizer.ggml.tokens", ...) to values; `out_dir` must exist.
    Raises TokenizerError when the metadata is incomplete, contradicts itself, or names a
    tokenizer model or pre-tokenizer that is not supported.
    """
    vocabulary = GgufVocabulary(metadata)
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    if vocabulary.model not in builders:
        raise TokenizerError(
            f"{PREFIX}model is {vocabulary.model!r}; supported: {', '.join(sorted(builders))}"
        )
    tokenizer, add_bos = builders[vocabulary.model](vocabulary)
    tokenizer.add_special_tokens(list(vocabulary.added(TokenType.CONTROL, TokenType.UNKNOWN)))
    tokenizer.add_tokens(list(vocabulary.added(TokenType.USER_DEFINED)))
    if tokenizer.get_vocab_size() != len(vocabulary.tokens):
        raise TokenizerError(
            f"{PREFIX}tokens has {len(vocabulary.tokens)} entries, but the tokenizer built from "
            f"it has {tokenizer.get_vocab_size()}"
        )
    add_bos = vocabulary.flag("add_bos_token", add_bos)
    add_eos = vocabulary.flag("add_eos_token", False)
    ids = vocabulary.special_ids()
    _set_post_processor(tokenizer, vocabulary, ids, add_bos=add_bos, add_eos=add_eos)

    tokenizer.save(str(out_dir / "tokenizer.json"), pretty=False)
    config = _tokenizer_config(vocabulary, ids, add_bos=add_bos, add_eos=add_eos)
    (out_dir / "tokenizer_config.json").write_text(
        json.dumps(config, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
    )
    return ids


def _byte_level(vocabulary: GgufVocabulary) -> tuple[Tokenizer, bool]:
    """Byte-level BPE ("gpt2"); also says whether BOS is added unless the file says otherwise."""
    pre = PRE_TOKENIZERS.get(vocabulary.pre)
    if pre is None:
        raise TokenizerError(
            f"{PREFIX}pre is {vocabulary.pre!r}; supported: {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    tokenizer = Tokenizer(
        _bpe(
            {token: index for index, token in enumerate(vocabulary.tokens)},
            vocabulary.merges(),
            ignore_merges=pre.ignore_merges,
        )
    )
    splits = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in pre.splits]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre.add_bos


def _sentencepiece(vocabulary: GgufVocabulary) -> tuple[Tokenizer, bool]:
    """SentencePiece BPE ("llama"): scores instead of merges, bytes for unknown characters."""
    unk = vocabulary.special_ids().unk
    tokenizer = Tokenizer(
        _bpe(
            {token: index for index, token in enumerate(vocabulary.tokens)},
            _merges_from_scores(vocabulary),
            unk_token=None if unk is None else vocabulary.tokens[unk],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    add_space = vocabulary.flag("add_space_prefix", True)
    prepend = [normalizers.Prepend(_SPACE)] if add_space else []
    tokenizer.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", left=1, right=0)] if add_space else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer, True


def _bpe(vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    for left, right in merges:
        for part in (left, right, left + right):
            if part not in vocab:
                raise TokenizerError(f"merge {left!r} + {right!r} needs {part!r}, not a token")
    return models.BPE(vocab=vocab, merges=merges, **options)


def _merges_from_scores(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """Every way to join two tokens into a third, best score of the result first.

    SentencePiece merges the adjacent pair whose union scores highest; ranking the pairs by that
    score gives a BPE the same order. Only normal tokens take part.
    """
    scores = vocabulary.scores()
    normal = {
        token: score
        for token, score, kind in zip(vocabulary.tokens, scores, vocabulary.types, strict=True)
        if kind == TokenType.NORMAL
    }
    pairs = [
        (token[:cut], token[cut:])
        for token in normal
        for cut in range(1, len(token))
        if token[:cut] in normal and token[cut:] in normal
    ]
    # equal scores, and the several ways to cut one token: the longer left part first
    pairs.sort(key=lambda pair: (normal[pair[0] + pair[1]], len(pair[0])), reverse=True)
    return pairs


def _set_post_processor(
    tokenizer: Tokenizer,
    vocabulary: GgufVocabulary,
    ids: SpecialTokenIds,
    *,
    add_bos: bool,
    add_eos: bool,
) -> None:
    template, special = ["$A"], []
    for wanted, name, token_id in (
        (add_bos, "bos", ids.bos),
        (add_eos, "eos", vocabulary.token_id("eos")),
    ):
        if not wanted:
            continue
        if token_id is None:
            raise TokenizerError(f"{name} is to be added, but {PREFIX}{name}_token_id is missing")
        token = vocabulary.tokens[token_id]
        template.insert(0 if name == "bos" else len(template), token)
        special.append((token, token_id))
    if special:
        tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special)


def _tokenizer_config(
    vocabulary: GgufVocabulary, ids: SpecialTokenIds, *, add_bos: bool, add_eos: bool
) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": add_bos,
        "add_eos_token": add_eos,
        "clean_up_tokenization_spaces": False,
    }
    named = {
        "bos_token": ids.bos,
        "eos_token": vocabulary.token_id("eos"),
        "unk_token": ids.unk,
        "pad_token": ids.pad,
    }
    config |= {name: vocabulary.tokens[i] for name, i in named.items() if i is not None}
    template = vocabulary.chat_template()
    if template is not None:
        config["chat_template"] = template
    return config
