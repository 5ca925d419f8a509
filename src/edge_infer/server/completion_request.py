"""The body of a text completion: its fields, and what is to be generated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from edge_infer.engine.sampling_params import MAX_LOGPROBS, SamplingParams
from edge_infer.server.chat_request import ignored_header
from edge_infer.server.fields import (
    Array,
    Boolean,
    Field,
    Integer,
    Only,
    String,
    Table,
    unsupported,
    wrong_type,
)
from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.sampling_fields import (
    COMMON_FIELDS,
    COMMON_UNSUPPORTED,
    MAX_N,
    MAX_TOKEN_ID,
    MAX_TOKENS,
    SAMPLING_FIELDS,
    sampling_params,
)
from edge_infer.server.state import ServerState
from edge_infer.server.structured_fields import STRUCTURED_FIELDS, structured_outputs

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_PROMPTS = 256

Prompt = str | list[int]


@dataclass(frozen=True)
class Prompts:
    """A text, token ids, or a list of either."""

    def parse(self, value: Any, param: str) -> list[Prompt]:
        """A list of at least one prompt."""
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list):
            raise wrong_type(value, param, "a string or an array")
        if not value:
            raise ParameterError(f"{param} is empty; one prompt is the least", param=param)
        if not isinstance(value[0], str | list):
            return [self._token_ids(value, param)]
        if len(value) > MAX_PROMPTS:
            raise ParameterError(
                f"{param} has {len(value)} prompts; it must have at most {MAX_PROMPTS}",
                param=param,
            )
        return [self._prompt(item, f"{param}[{index}]") for index, item in enumerate(value)]

    def _prompt(self, value: Any, param: str) -> Prompt:
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            return self._token_ids(value, param)
        raise wrong_type(value, param, "a string or an array of token ids")

    def _token_ids(self, value: list[Any], param: str) -> list[int]:
        if not value:
            raise ParameterError(f"{param} is empty; one token is the least", param=param)
        token_ids: list[int] = Array(Integer(0, MAX_TOKEN_ID)).parse(value, param)
        return token_ids

    def schema(self) -> dict[str, Any]:
        """A text, token ids, or a list of either."""
        text = {"type": "string"}
        token = {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}
        ids = {"type": "array", "items": token, "minItems": 1}
        several = {"minItems": 1, "maxItems": MAX_PROMPTS}
        many = {"type": "array", "items": {"anyOf": [text, ids]}, **several}
        return {"anyOf": [text, ids, many]}


COMPLETION_FIELDS = Table(
    {
        "prompt": Field(Prompts(), "Text or token ids, one prompt or several", required=True),
        "model": Field(String(), "The served model's id, or nothing"),
        "max_tokens": Field(Integer(1, MAX_TOKENS), f"Default: {DEFAULT_MAX_TOKENS}"),
        **SAMPLING_FIELDS,
        **COMMON_FIELDS,
        "logprobs": Field(Integer(0, MAX_LOGPROBS), "Log-probabilities of this many tokens"),
        "echo": Field(Boolean(), "Begin the answer with the prompt"),
        "best_of": Field(Integer(1, MAX_N), "Only the value of n"),
        "stream_options": Field(
            Table(
                {
                    "include_usage": Field(Boolean(), "A last chunk with the usage"),
                    "continuous_usage_stats": Field(Only((False,), "see include_usage")),
                    "include_obfuscation": Field(Only((False,), "nothing is padded")),
                }
            )
        ),
        **STRUCTURED_FIELDS,
    },
    unsupported={
        **COMMON_UNSUPPORTED,
        "suffix": "text is completed at its end only",
        "add_special_tokens": "give token ids",
    },
)
COMPLETION_REQUEST_SCHEMA = COMPLETION_FIELDS.schema()


@dataclass(frozen=True)
class CompletionRequest:
    """A checked completion request; each prompt gets n answers."""

    prompts: list[Prompt]
    sampling: SamplingParams
    n: int
    echo: bool
    stream: bool
    include_usage: bool
    priority: int
    cache_salt: str
    headers: dict[str, str] = field(default_factory=dict)  # of the response


def read_completion_request(state: ServerState, body: dict[str, Any]) -> CompletionRequest:
    """Check a body. Raises ParameterError and ApiError."""
    ignored: list[str] | None = [] if state.settings.ignore_unknown_parameters else None
    values = COMPLETION_FIELDS.read(body, ignored=ignored)
    state.check_model(values.get("model"))
    n = values.get("n", 1)
    if values.get("best_of", n) != n:
        raise unsupported("best_of", f"it can only be n, which is {n}; all answers are returned")
    if values.get("echo") and "logprobs" in values:
        raise unsupported("echo", "with logprobs: the prompt's are not computed")
    stream, options = values.get("stream", False), values.get("stream_options", {})
    if options and not stream:
        raise ParameterError("stream_options needs stream: true", param="stream_options")
    return CompletionRequest(
        prompts=values["prompt"],
        sampling=sampling_params(
            values,
            max_tokens=values.get("max_tokens", DEFAULT_MAX_TOKENS),
            logprobs=values.get("logprobs"),
            **structured_outputs(values),
        ),
        n=n,
        echo=values.get("echo", False),
        stream=stream,
        include_usage=options.get("include_usage", False),
        priority=values.get("priority", 0),
        cache_salt=values.get("cache_salt", ""),
        headers=ignored_header(ignored),
    )
