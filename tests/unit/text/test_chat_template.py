"""Rendering against transformers' `render_jinja_template`; the templates are short ones of our own
in the style of the families we run."""

from typing import Any

import pytest

from edge_infer.text import ChatTemplate, ChatTemplateError
from edge_infer.text import chat_template as limits

SMOLLM2 = """\
{% for message in messages %}
{% if loop.first and messages[0]['role'] != 'system' %}
{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
{% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

QWEN25 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function if call.function is defined else call %}
            {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

QWEN3 = """\
{%- set ns = namespace(last=messages | length - 1, found=false) %}
{%- for message in messages[::-1] %}
    {%- if not ns.found and message.role == 'user' and message.content is string %}
        {%- set ns.found = true %}
        {%- set ns.last = messages | length - loop.index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- set thought = message.reasoning_content if message.reasoning_content is string else '' %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if thought and loop.index0 > ns.last %}
        {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%Y") %}
    {%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + date_string + "\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role not in ['ipython', 'tool'] and 'tool_calls' not in message %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("Only one tool call at a time") }}
        {%- endif %}
        {%- for name, value in message.tool_calls[0].function.arguments.items() %}
            {{- name + '="' ~ value ~ '"' }}{%- if not loop.last %}{{- ", " }}{%- endif %}
        {%- endfor %}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

MISTRAL = """\
{{ bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}{{- '[INST] ' + message['content'] + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}{{- message['content'] + eos_token }}
    {%- else %}{{- raise_exception('Only user and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}"""

MISCELLANY = """\
{%- macro show(value) %}[{{ value }}]{% endmacro -%}
{%- macro wrap() %}<{{ caller() }}>{% endmacro -%}
{% generation %}{{ messages[0].content }}{% endgeneration %}
{% for n in range(9) %}{% if n == 2 %}{% continue %}{% elif n > 4 %}{% break %}{% endif %}{{ n }}
{%- endfor %}
    {% set d = dict(a=1, b=[2]) %}
  {{ d | tojson(sort_keys=true, separators=(',', ':')) }}
{{ show('é<&>') }} {{ {'é<&>': none} | tojson }} {{ missing }}{{ undefined is defined }}
{% call wrap() %}x{% endcall %} {{ 2 ** 5 * 3 }} {{ 'ab' * 3 }} {{ documents | tojson }}
"""

USER = {"role": "user", "content": "Héllo <b>\n "}
TOOL_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "1",
            "type": "function",
            "function": {"name": "add", "arguments": {"a": 1, "b": "é"}},
        }
    ],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Größe <x> & 'y'",
            "parameters": {"a": [1, 2.5]},
        },
    }
]
TOOL_CHAT = [
    {"role": "system", "content": "Be brief."},
    USER,
    TOOL_CALL,
    {"role": "tool", "content": "42", "name": "add"},
    {"role": "tool", "content": {"sum": "43"}},
]
THOUGHTS = [
    USER,
    {"role": "assistant", "content": "<think>\nold\n</think>\n\nHi"},
    {"role": "user", "content": "And?"},
    {"role": "assistant", "content": "Yes", "reasoning": "new\n"},
]

CASES = {
    "smollm2": (SMOLLM2, [USER], {}),
    "smollm2, open": (SMOLLM2, [*TOOL_CHAT[:2]], {"add_generation_prompt": False}),
    "qwen2.5": (QWEN25, [USER], {}),
    "qwen2.5, tools": (QWEN25, TOOL_CHAT, {"tools": TOOLS}),
    "qwen3": (QWEN3, THOUGHTS, {}),
    "qwen3, no thinking": (QWEN3, THOUGHTS, {"enable_thinking": False}),
    "llama3": (LLAMA3, [USER, {"role": "assistant", "content": " ok "}], {}),
    "llama3, tools": (LLAMA3, TOOL_CHAT, {"tools": TOOLS, "date_string": "1 May 2026"}),
    "mistral": (MISTRAL, [USER, {"role": "assistant", "content": "ok"}, USER], {}),
    "miscellany": (MISCELLANY, [USER], {"documents": [{"title": "t", "text": "x"}]}),
}


@pytest.mark.parametrize("case", CASES)
def test_renders_as_transformers(case: str) -> None:
    pytest.importorskip("transformers")
    from transformers.utils import chat_template_utils as reference

    source, messages, options = CASES[case]
    options = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"} | options
    expected, _ = reference.render_jinja_template(
        [reference._normalize_chat_messages(messages)], chat_template=source, **options
    )
    assert ChatTemplate(source).render(messages, **options) == expected[0]
    assert len(expected[0]) > 10


def test_a_template_that_refuses_the_conversation() -> None:
    messages = [USER, USER]
    with pytest.raises(ChatTemplateError, match="line 4: Conversation roles must alternate") as e:
        ChatTemplate(MISTRAL).render(messages, bos_token="", eos_token="")
    assert e.value.line == 4


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ("a\n{% if x %}\nb", 3, "end of template"),
        ("a\n\n{{ x. }}", 3, "expected name"),
        ("\n{% nosuchtag %}", 2, "unknown tag"),
        ("a\n{{ messages[0].content.nothing.more }}", 2, "UndefinedError"),
        ("\n\n{{ 1 // 0 }}", 3, "ZeroDivisionError"),
        ("{{ 'a' + 1 }}", 1, "TypeError"),
        ("\n{{ ''.__class__.__mro__ }}", 2, "SecurityError"),
        ("\n{% set x = messages.append(1) %}", 2, "SecurityError"),
        ("{{ range(10**9) }}", 1, "OverflowError"),
        ("\n{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", 2, "without end"),
    ],
)
def test_errors_name_the_line(source: str, line: int, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message) as error:
        ChatTemplate(source).render([USER])
    assert error.value.line == line
    assert f"line {line}: " in str(error.value)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(50000) %}{% for b in range(50000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{{ 'a' * 10**9 }}",
        "{{ [0] * 10**9 }}",
        "{{ 9 ** 1000000000 }}",
    ],
)
def test_a_runaway_template_is_stopped(source: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"beyond|steps"):
        ChatTemplate(source).render([USER])


def test_the_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_OUTPUT_CHARS", 1000)
    template = ChatTemplate("{% for i in range(count) %}0123456789{% endfor %}")
    assert len(template.render([], count=100)) == 1000
    with pytest.raises(ChatTemplateError, match="more than 1000 characters"):
        template.render([], count=101)


def test_messages_are_not_changed_and_must_be_plain_data() -> None:
    messages = [{"role": "user", "content": None, "reasoning": "r"}]
    shown = ChatTemplate("{{ messages[0] | tojson(sort_keys=true) }}").render(messages)
    assert shown == '{"reasoning": "r", "reasoning_content": "r", "role": "user", "thinking": "r"}'
    assert messages == [{"role": "user", "content": None, "reasoning": "r"}]
    with pytest.raises(ChatTemplateError, match=r"messages\[0\]\.content\[0\]\.image is object"):
        ChatTemplate("").render([{"role": "user", "content": [{"image": object()}]}])
    bad: Any = ["hello"]
    with pytest.raises(ChatTemplateError, match=r"messages\[0\] is str"):
        ChatTemplate("").render(bad)


def test_each_rendering_has_its_own_step_count() -> None:
    template = ChatTemplate("{% for i in range(60000) %}{% endfor %}done")
    for _ in range(4):  # together more than MAX_STEPS
        assert template.render([]) == "done"


@pytest.mark.parametrize(
    "expression",
    [
        "'x'.ljust(10 ** 9)",
        "'x'.rjust(10 ** 9)",
        "'x'.center(10 ** 9)",
        "'x'.zfill(10 ** 9)",
        "'\\t'.expandtabs(10 ** 9)",
        "('x' * 10 ** 6).replace('', 'x' * 100)",
        "('x' * 100).join(['y'] * 10 ** 6)",
        "'{:1000000000}'.format('x')",
        "'{:{}}'.format('x', 10 ** 9)",
        "'{a:1000000000}'.format_map({'a': 'x'})",
        "'%1000000000d' % 1",
        "'%.1000000000f' % 1",
        "'%*d' % (10 ** 9, 1)",
        "'%(a)1000000000d' % {'a': 1}",
        "'x' | center(10 ** 9)",
        "'%1000000000d' | format(1)",
        "'x' | indent(10 ** 9, true)",
        "('x' * 10 ** 6) | replace('', 'x' * 100)",
        "(['y'] * 10 ** 6) | join('x' * 100)",
    ],
)
def test_no_single_operation_makes_a_huge_text(expression: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"limit|beyond|width"):
        ChatTemplate("{{ (" + expression + ") | length }}").render([])


@pytest.mark.parametrize("operation", ["ns.x + ns.x", "ns.x ~ ns.x"])
def test_doubling_ends_at_the_bound(operation: str) -> None:
    source = (
        "{% set ns = namespace(x='x') %}{% for i in range(40) %}"
        "{% set ns.x = " + operation + " %}{% endfor %}"
    )
    with pytest.raises(ChatTemplateError, match="33554432 characters"):
        ChatTemplate(source).render([])


def test_doubling_in_a_block_ends_at_the_bound() -> None:
    source = (
        "{% set ns = namespace(x='x') %}{% for i in range(40) %}"
        "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}"
    )
    with pytest.raises(ChatTemplateError, match="33554432 characters"):
        ChatTemplate(source).render([])


def test_bounded_operations_give_what_python_gives() -> None:
    source = (
        "{{ 'a'.ljust(3) ~ 1 ~ none ~ '%5.1f|%s|%d%%' % (1.25, 'b', 7) "
        "~ '{:>4}{x!r}'.format(3, x='y') }}"
        "{{ 'a,b'.replace(',', '-') + '-'.join(['c', 'd']) }}{{ [1] + [2] }}{{ 7 % 4 }}"
        "{{ ['a', 1] | join('+') }}{{ 'aXb' | replace('X', '.') }}{{ 'a' | center(3) }}"
    )
    expected = "a  1None  1.2|b|7%   3'y'a-bc-d[1, 2]3a+1a.b a "
    assert ChatTemplate(source).render([]) == expected


def test_memory_that_runs_out_is_a_template_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(limits, "_check_length", exhausted)
    with pytest.raises(ChatTemplateError, match="not enough memory"):
        ChatTemplate("{{ messages ~ 'x' }}").render([])
