"""Chat templates in the notations of several families, and a tokenizer that knows their tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from edge_infer.text import Tokenizer

HERMES = """\
{%- if tools %}{{ '<|im_start|>system\n' }}
{%- for tool in tools %}{{ tool | tojson }}{{ '\n' }}{% endfor %}
{{- 'Calls go into <tool_call></tool_call>.<|im_end|>\n' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.role == 'assistant' and '</think>' in message.content %}
{{- message.content.split('</think>')[-1] | trim }}
{%- else %}{{ message.content | trim }}{% endif %}
{%- for call in message.tool_calls %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}
{%- endif %}{% endif %}"""
LLAMA3 = """\
{%- for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
{%- if message.tool_calls %}
{{- '{"name": "' + message.tool_calls[0].function.name + '", "parameters": ' }}
{{- message.tool_calls[0].function.arguments | tojson }}{{ '}' }}
{%- else %}{{ message.content }}{% endif %}{{ '<|eot_id|>' }}{% endfor %}
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"""
SPARK = """\
{%- for tool in tools or [] %}{{ tool | tojson(ensure_ascii=True) }}{% endfor %}
{%- for message in messages %}{{ '<|' + message.role + '|>' + message.content }}
{%- for call in message.tool_calls %}{{ '<tool_call>' + call.function.name }}
{%- for key, value in call.function.arguments.items() %}
{{- '<arg_key>' + key + '</arg_key><arg_value>' + (value | string) + '</arg_value>' }}
{%- endfor %}{{ '</tool_call>' }}{% endfor %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|><think>' }}{% endif %}"""
SPECIAL = ("<|im_end|>", "<|im_start|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")
MakeTokenizer = Callable[..., Tokenizer]


@pytest.fixture
def make_tokenizer() -> MakeTokenizer:
    """make_tokenizer(template, special=(), templates={}): bytes and special tokens."""

    def make(
        template: str, special: tuple[str, ...] = (), templates: Mapping[str, str] | None = None
    ) -> Tokenizer:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        backend = tokenizers.Tokenizer(
            models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[])
        )
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([*SPECIAL, *special])
        return Tokenizer(
            backend,
            special_tokens={"eos_token": "<|im_end|>"},
            chat_templates={"default": template, **(templates or {})},
        )

    return make
