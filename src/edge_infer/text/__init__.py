"""Tokenizer, chat template, streaming detokenizer, stop strings."""

from edge_infer.text.chat_template import ChatTemplate, ChatTemplateError
from edge_infer.text.detokenizer import StreamDetokenizer
from edge_infer.text.gguf_tokenizer import tokenizer_from_gguf
from edge_infer.text.gguf_vocabulary import SpecialTokenIds
from edge_infer.text.load import load_tokenizer
from edge_infer.text.stops import StopChecker
from edge_infer.text.tokenizer import Tokenizer, TokenizerError

__all__ = [
    "ChatTemplate",
    "ChatTemplateError",
    "SpecialTokenIds",
    "StopChecker",
    "StreamDetokenizer",
    "Tokenizer",
    "TokenizerError",
    "load_tokenizer",
    "tokenizer_from_gguf",
]
