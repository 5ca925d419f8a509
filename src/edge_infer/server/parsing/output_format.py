"""How a model writes reasoning and tool calls, as its chat template shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edge_infer.text import Tokenizer

CallFormat = Literal["hermes", "llama3", "spark"]

TOOL_CALL = ("<tool_call>", "</tool_call>")
PYTHON_TAG = "<|python_tag|>"
_THINK = ("<think>", "</think>")


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
    special_markers: whether a marker is a special token, so that the text must be made with
        `skip_special_tokens=False` for the markers to be in it.
    """

    tool_calls: CallFormat | None = None
    reasoning: tuple[str, str] | None = None
    reasoning_opened: bool = False
    special_markers: bool = False

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
    tool_calls = _call_format(template)
    reasoning = _THINK if _THINK[1] in template else None
    end = prompt_text_end.rstrip()
    opened = end.endswith(_THINK[0])
    if opened:
        reasoning = _THINK
    elif end.endswith(_THINK[1]):
        reasoning = None
    markers = list(reasoning or ())
    if tool_calls in ("hermes", "spark"):
        markers += TOOL_CALL
    special = {tokenizer.token_id(marker) for marker in markers} & tokenizer.special_token_ids
    return OutputFormat(tool_calls, reasoning, opened, bool(special))


def _call_format(template: str) -> CallFormat | None:
    if "tools" not in template:
        return None
    if "<arg_key>" in template:
        return "spark"
    if TOOL_CALL[0] in template:
        return "hermes"
    if '"parameters"' in template and "<|start_header_id|>" in template:
        return "llama3"
    return None
