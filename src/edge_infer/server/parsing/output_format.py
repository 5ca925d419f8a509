"""How a model writes reasoning and tool calls, as its chat template shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from edge_infer.text import Tokenizer

CallFormat = Literal["hermes", "llama3", "spark"]

TOOL_CALL = ("<tool_call>", "</tool_call>")
PYTHON_TAG = "<|python_tag|>"
ARG_KEY = ("<arg_key>", "</arg_key>")
ARG_VALUE = ("<arg_value>", "</arg_value>")
_THINK = ("<think>", "</think>")
_MARKERS: Mapping[CallFormat, tuple[str, ...]] = {
    "hermes": TOOL_CALL,
    "spark": (*TOOL_CALL, *ARG_KEY, *ARG_VALUE),
    "llama3": (),  # its calls can be told without the tag
}


@dataclass(frozen=True)
class OutputFormat:
    """What to expect in a model's answer.

    tool_calls: the notation of calls; None when the template knows no tools.
        hermes: `<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>`
        llama3: `{"name": ..., "parameters": {...}}` as the whole answer
        spark:  `<tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`
    reasoning: the markers around the reasoning; None when the model does not reason, or when the
        prompt has already closed the reasoning.
    reasoning_opened: whether the prompt ends inside the reasoning.
    reasons: whether the answer has reasoning for certain: what constrains the answer begins
        behind it.
    special_ids: the markers that are special tokens, with their ids; the text must be made with
        `skip_special_tokens=False` for them to be in it.
    """

    tool_calls: CallFormat | None = None
    reasoning: tuple[str, str] | None = None
    reasoning_opened: bool = False
    reasons: bool = False
    special_ids: Mapping[str, int] = field(default_factory=dict)

    @property
    def call_format(self) -> CallFormat:
        """The notation of calls, which is hermes where the template has none of its own."""
        return self.tool_calls or "hermes"


def detect_output_format(tokenizer: Tokenizer, *, prompt_text_end: str) -> OutputFormat:
    """The format of the answer to a prompt that ends with `prompt_text_end`.

    Judged by the template for conversations with tools where there is one, and by the end of the
    prompt: an opened or a closed reasoning block.
    """
    templates = tokenizer.chat_templates
    template = templates.get("tool_use") or templates.get("default") or ""
    tool_calls = call_format(template)
    reasoning = _THINK if _THINK[1] in template else None
    end = prompt_text_end.rstrip()
    opened = end.endswith(_THINK[0])
    if opened:
        reasoning = _THINK
    elif end.endswith(_THINK[1]):
        reasoning = None
    # Some templates only remove reasoning from earlier turns; one with a switch has it on here.
    reasons = opened or (reasoning is not None and "enable_thinking" in template)
    special = {}
    for marker in (*(reasoning or ()), *_MARKERS[tool_calls or "hermes"]):
        token_id = tokenizer.token_id(marker)
        if token_id is not None and token_id in tokenizer.special_token_ids:
            special[marker] = token_id
    return OutputFormat(tool_calls, reasoning, opened, reasons, special)


def call_format(template: str) -> CallFormat | None:
    """The notation of calls a template shows; None when it knows no tools."""
    if "tools" not in template:
        return None
    if ARG_KEY[0] in template:
        return "spark"
    if TOOL_CALL[0] in template:
        return "hermes"
    if '"parameters"' in template and "<|start_header_id|>" in template:
        return "llama3"
    return None
