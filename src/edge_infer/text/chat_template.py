"""Chat templates: sandboxed Jinja with the semantics of transformers' `apply_chat_template`.

A template comes with the checkpoint and is not trusted: it runs in Jinja's immutable sandbox on
plain copies of the caller's data, and how long it may run and how much it may write are bounded.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from types import TracebackType
from typing import Any

import jinja2
from jinja2 import filters, nodes, pass_eval_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.visitor import NodeTransformer

MAX_OUTPUT_CHARS = 16 * 1024 * 1024
MAX_STEPS = 200_000  # loop iterations and macro calls in one rendering
_MAX_REPEAT = 1_000_000  # items or characters made by one `*`, padding or format width
_MAX_EXPONENT = 64
_PADDING = frozenset({"ljust", "rjust", "center", "zfill"})
_PERCENT_SPEC = re.compile(r"%(?:\([^)]*\))?([^a-zA-Z%]*)")
_DIGITS = re.compile(r"\d+")

# The standard name first; the others are what clients and older templates call the same thing.
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")

# What a template's own mistakes or the data it is given can raise while it runs.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
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


def _check_length(length: int, operation: str) -> None:
    if length > MAX_OUTPUT_CHARS:
        raise ChatTemplateError(
            f"{operation} makes {length} characters or items, limit {MAX_OUTPUT_CHARS}"
        )


def _check_width(width: Any, operation: str) -> None:
    if isinstance(width, int) and width > _MAX_REPEAT:
        raise ChatTemplateError(f"{operation} of width {width}, limit {_MAX_REPEAT}")


def _check_percent(template: str) -> None:
    """Refuse a `%` format whose widths are beyond the bound, or in the arguments (`*`)."""
    for spec in _PERCENT_SPEC.findall(template):
        if "*" in spec:
            raise ChatTemplateError("a % format with a width of * is not supported")
        for digits in _DIGITS.findall(spec):
            _check_digits(digits, "a % format")


def _check_digits(digits: str, operation: str) -> None:
    # the length first: an integer of very many digits is slow, or refused, to parse
    if len(digits.lstrip("0")) > len(str(_MAX_REPEAT)) or int(digits[-9:]) > _MAX_REPEAT:
        raise ChatTemplateError(f"{operation} of a width beyond {_MAX_REPEAT}")


def _check_method(text: str, name: str, arguments: tuple[Any, ...]) -> None:
    """Refuse a call of a str method whose result would be beyond the bounds."""
    if name in _PADDING and arguments:
        _check_width(arguments[0], name)
    elif name == "expandtabs" and arguments and isinstance(arguments[0], int):
        _check_length(len(text) + text.count("\t") * arguments[0], name)
    elif name == "replace" and len(arguments) >= 2:
        _check_replace(text, *arguments[:2])
    elif name == "join" and arguments:
        _check_join(text, arguments[0])


def _check_replace(text: str, old: Any, new: Any) -> None:
    old, new = str(old), str(new)
    found = text.count(old)
    _check_length(len(text) + found * (len(new) - len(old)), "replace")


def _check_join(separator: str, items: Any) -> None:
    if isinstance(items, list | tuple):
        total = sum(len(item) for item in items if isinstance(item, str))
        _check_length(total + len(separator) * max(0, len(items) - 1), "join")


class _BoundedFormatter(SandboxedFormatter):
    """`str.format` with bounded widths and a bounded result."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        for digits in _DIGITS.findall(format_spec):
            _check_digits(digits, "format")
        return super().format_field(value, format_spec)


class _Steps(Extension):
    """Counts a step in every loop iteration and macro call, and refuses beyond MAX_STEPS."""

    def count_step(self) -> str:
        steps = _steps.get()
        steps[0] += 1
        if steps[0] > MAX_STEPS:
            raise ChatTemplateError(f"the chat template took more than {MAX_STEPS} steps")
        return ""

    def concatenate(self, *values: Any) -> str:
        """`a ~ b`, bounded."""
        pieces = [str(value) for value in values]
        _check_length(sum(map(len, pieces)), "~")
        return "".join(pieces)


class _Generation(Extension):
    """Accepts `{% generation %}`, which marks the assistant's tokens for training: no effect."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _BoundConcatenation(NodeTransformer):
    """Makes every `~` a call of `_Steps.concatenate`: it is no operator the sandbox intercepts."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        function = nodes.ExtensionAttribute(_Steps.identifier, "concatenate")
        return nodes.Call(function, node.nodes, [], None, None).set_lineno(node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for sequence, count in ((left, right), (right, left)):
                repeats = isinstance(sequence, str | list | tuple) and isinstance(count, int)
                if repeats and len(sequence) * count > _MAX_REPEAT:
                    raise ChatTemplateError(f"a repetition beyond {_MAX_REPEAT} items")
        elif operator == "+":
            if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
                _check_length(len(left) + len(right), "+")
        elif operator == "%":
            if isinstance(left, str):
                _check_percent(left)
        elif isinstance(right, int | float) and abs(right) > _MAX_EXPONENT:
            raise ChatTemplateError(f"an exponent beyond {_MAX_EXPONENT}")
        return super().call_binop(context, operator, left, right)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """What compiled code joins the text of macros and `{% set %}` blocks with."""
        pieces = list(pieces)
        _check_length(sum(map(len, pieces)), "a block")
        return "".join(pieces)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            _check_method(owner, __obj.__name__, args)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text, formatter = value.__self__, _BoundedFormatter(self)
        if value.__name__ == "format_map":
            return lambda mapping: formatter.vformat(text, (), mapping)
        return lambda *args, **kwargs: formatter.vformat(text, args, kwargs)

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
        _BoundConcatenation().visit(tree)  # changes it in place
        return tree


def _center(value: Any, width: int = 80) -> str:
    _check_width(width, "center")
    return filters.do_center(value, width)


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    _check_percent(str(value))
    return filters.do_format(value, *args, **kwargs)


@pass_eval_context
def _replace(context: Any, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    _check_replace(str(value), old, new)
    return filters.do_replace(context, value, old, new, count)


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    per_line = width if isinstance(width, int) else len(width)
    _check_length(len(value) + (value.count("\n") + 1) * per_line, "indent")
    return filters.do_indent(value, width, first, blank)


@pass_eval_context
def _join(context: Any, value: Any, d: str = "", attribute: Any = None) -> str:
    items = list(value)
    if attribute is None:
        _check_join(str(d), items)
    return filters.sync_do_join(context, items, d, attribute)


@lru_cache(maxsize=32)
def _compile(source: str) -> jinja2.Template:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation, _Steps],
    )
    environment.filters["tojson"] = _tojson
    environment.filters |= {
        "center": _center,
        "format": _format,
        "indent": _indent,
        "join": _join,
        "replace": _replace,
    }
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
    if isinstance(error, MemoryError):
        return "there is not enough memory for what the template makes"
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
