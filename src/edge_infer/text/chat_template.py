"""Chat templates: sandboxed Jinja with the semantics of transformers' `apply_chat_template`.

A template comes with the checkpoint and is not trusted: it runs in Jinja's immutable sandbox on
plain copies of the caller's data, and how long it may run and how much it may write are bounded.
"""

import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from types import TracebackType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_OUTPUT_CHARS = 16 * 1024 * 1024
MAX_STEPS = 200_000  # loop iterations and macro calls in one rendering
_MAX_REPEAT = 1_000_000  # items or characters made by one `*`
_MAX_EXPONENT = 64

# The standard name first; the others are what clients and older templates call the same thing.
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")

# What a template's own mistakes or the data it is given can raise while it runs.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplateError(ValueError):
    """A template that does not compile, refuses the conversation, or exceeds a bound.

    `line` is the template line, from 1, or None when the fault is not in the template.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"chat template line {line}: {message}")
        self.line = line


class ChatTemplate:
    """A compiled chat template; compiling is cached by source. Safe to use from many threads."""

    def __init__(self, source: str) -> None:
        self._template = _compile(source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt for a conversation; `variables` are further names the template may read.

        As in transformers, a message key whose value is None counts as absent, and reasoning is
        found under any of its usual names. Data must be JSON-like. Raises ChatTemplateError.
        """
        context = {
            "messages": [_message(message, index) for index, message in enumerate(messages)],
            "tools": _plain(tools, "tools"),
            "documents": _plain(documents, "documents"),
            "add_generation_prompt": add_generation_prompt,
            **{name: _plain(value, name) for name, value in variables.items()},
        }
        pieces: list[str] = []
        length = 0
        steps = _steps.set([0])
        try:
            for piece in self._template.generate(context):
                length += len(piece)
                if length > MAX_OUTPUT_CHARS:
                    raise ChatTemplateError(
                        f"the chat template wrote more than {MAX_OUTPUT_CHARS} characters"
                    )
                pieces.append(piece)
        except ChatTemplateError:
            raise
        except _TEMPLATE_FAULTS as error:
            raise ChatTemplateError(_describe(error), _template_line(error)) from error
        finally:
            _steps.reset(steps)
        return "".join(pieces)


def _message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise ChatTemplateError(f"{where} is {type(message).__name__}; an object is expected")
    plain: dict[str, Any] = {
        key: _plain(value, f"{where}.{key}") for key, value in message.items() if value is not None
    }
    reasoning = next((plain[key] for key in _REASONING_KEYS if key in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _plain(value: Any, where: str) -> Any:
    """A copy made of plain JSON types, so a template can reach no methods and change no data."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise ChatTemplateError(f"{where} is {type(value).__name__}; only JSON types are allowed")


class _Raised(jinja2.TemplateError):
    """What a template's own `raise_exception` raises."""


def _raise_exception(message: str) -> None:
    raise _Raised(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which a prompt must not contain."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


# Steps taken by the rendering under way in this context.
_steps: ContextVar[list[int]] = ContextVar("edge_infer_template_steps")


class _Steps(Extension):
    """Counts a step in every loop iteration and macro call, and refuses beyond MAX_STEPS."""

    def count_step(self) -> str:
        steps = _steps.get()
        steps[0] += 1
        if steps[0] > MAX_STEPS:
            raise ChatTemplateError(f"the chat template took more than {MAX_STEPS} steps")
        return ""


class _Generation(Extension):
    """Accepts `{% generation %}`, which marks the assistant's tokens for training: no effect."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for sequence, count in ((left, right), (right, left)):
                repeats = isinstance(sequence, str | list | tuple) and isinstance(count, int)
                if repeats and len(sequence) * count > _MAX_REPEAT:
                    raise ChatTemplateError(f"a repetition beyond {_MAX_REPEAT} items")
        elif isinstance(right, int | float) and abs(right) > _MAX_EXPONENT:
            raise ChatTemplateError(f"an exponent beyond {_MAX_EXPONENT}")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        repeated: list[nodes.For | nodes.Macro | nodes.CallBlock] = [
            *tree.find_all(nodes.For),
            *tree.find_all(nodes.Macro),
            *tree.find_all(nodes.CallBlock),
        ]
        for node in repeated:
            call = nodes.Call(
                nodes.ExtensionAttribute(_Steps.identifier, "count_step"), [], [], None, None
            )
            node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))
        return tree


@lru_cache(maxsize=32)
def _compile(source: str) -> jinja2.Template:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation, _Steps],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ChatTemplateError(error.message or "does not compile", error.lineno) from error


def _describe(error: Exception) -> str:
    if isinstance(error, _Raised):
        return str(error)
    if isinstance(error, RecursionError):
        return "macros call each other without end"
    return f"{type(error).__name__}: {error}"


def _template_line(error: Exception) -> int | None:
    """The innermost template line of a traceback; Jinja maps compiled code back to its source."""
    line = None
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
