"""What form an answer has, by the template and the end of the prompt."""

from __future__ import annotations

import pytest
from tests.unit.server.conftest import HERMES, LLAMA3, SPARK, MakeTokenizer

from edge_infer.server.parsing.output_format import OutputFormat, detect_output_format

THINK = ("<think>", "</think>")
USER = [{"role": "user", "content": "?"}]


@pytest.mark.parametrize(
    ("template", "options", "expected"),
    [
        (HERMES, {}, OutputFormat("hermes", THINK, reasons=True)),
        (HERMES, {"enable_thinking": False}, OutputFormat("hermes")),
        (HERMES.replace("enable_thinking", "x"), {}, OutputFormat("hermes", THINK)),
        (LLAMA3, {}, OutputFormat("llama3")),
        (SPARK, {}, OutputFormat("spark", THINK, reasoning_opened=True, reasons=True)),
        ("{{ messages[0].content }}", {}, OutputFormat()),
    ],
)
def test_detection(
    make_tokenizer: MakeTokenizer, template: str, options: dict[str, bool], expected: OutputFormat
) -> None:
    tokenizer = make_tokenizer(template)
    prompt = tokenizer.apply_chat_template(USER, **options)
    assert detect_output_format(tokenizer, prompt_text_end=prompt[-64:]) == expected


def test_markers_that_are_special_tokens(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(HERMES, special=("<tool_call>", "</think>", "<arg_key>"))
    found = detect_output_format(tokenizer, prompt_text_end="")
    assert found.special_ids == {
        marker: tokenizer.token_id(marker) for marker in ("<tool_call>", "</think>")
    }


def test_the_template_for_tools_counts(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("{{ messages }}", templates={"tool_use": SPARK})
    assert detect_output_format(tokenizer, prompt_text_end="").tool_calls == "spark"
