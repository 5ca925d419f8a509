"""Small tokenizers of each kind, built on the spot."""

import json
from collections.abc import Callable

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from edge_infer.text import Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog, then the dog sleeps.",
    "def add(a, b):\n    return a + b  # the sum of two numbers, 1234 and 5678\n",
    "Zażółć gęślą jaźń; naïve café; Привет, мир; 日本語のテキスト; 한국어 문장; 🤗👩‍👩‍👧",
    'for (int i = 0; i < 10; ++i) {\n\tprintf("%d\\n", i);\n}\r\n',
]


def byte_level_backend() -> Backend:
    """Byte-level BPE with special and plain added tokens, one of them outside ASCII."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens(["<|bos|>", "<|eos|>"])
    backend.add_tokens(["<think>", AddedToken("日本 Ω", normalized=False)])
    return backend


def sentencepiece_vocabulary() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and GGUF token types of a small SentencePiece vocabulary."""
    backend = Backend(models.BPE())
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    # cut words as SentencePiece does, so that no token crosses into the next word
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(?=▁)"), behavior="isolated")
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    backend.train_from_iterator(CORPUS[:1] + CORPUS[2:3], trainer)
    model = json.loads(backend.to_str())["model"]
    pieces = list(dict.fromkeys("".join(pair) for pair in model["merges"]))
    pieces += [piece for piece in model["vocab"] if len(piece) == 1]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces))]
    types = [2, 3, 3] + [6] * 256 + [1] * len(pieces)
    return [*tokens, "<|user|>", "<think>"], [*scores, 0.0, 0.0], [*types, 3, 4]


def _sentencepiece(strip: bool) -> Tokenizer:
    tokens, _, _ = sentencepiece_vocabulary()
    backend = Backend(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tail = [decoders.Strip(" ", left=1, right=0)] if strip else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *tail]
    )
    backend.add_special_tokens(["<s>", "</s>", "<unk>"])
    return Tokenizer(backend)


def _wordpiece() -> Tokenizer:
    words = ["[UNK]", "[CLS]", "hello", "world", "##ly", "##s", ",", ".", "do", "n", "'", "t"]
    backend = Backend(
        models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    backend.decoder = decoders.WordPiece(cleanup=True)
    backend.add_special_tokens(["[CLS]"])
    return Tokenizer(backend)


def _metaspace() -> Tokenizer:
    tokens = ["<unk>", "▁hello", "▁", "wor", "ld", "▁the", "é", "日", "▁▁"]
    backend = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    backend.decoder = decoders.Metaspace()
    return Tokenizer(backend)


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": lambda: Tokenizer(byte_level_backend()),
    "sentencepiece": lambda: _sentencepiece(strip=False),
    "sentencepiece-strip": lambda: _sentencepiece(strip=True),
    "wordpiece": _wordpiece,
    "metaspace": _metaspace,
}
