"""The sampling parameters of a request: their fields, and SamplingParams made of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from edge_infer.engine.sampling_params import MAX_STOP_STRINGS, MAX_TEMPERATURE, SamplingParams
from edge_infer.server.fields import Array, Boolean, Either, Field, Integer, Map, Number, String
from edge_infer.server.parameter_error import ParameterError

MAX_N = 128
MAX_TOKEN_ID = 2**31 - 1
MAX_TOKENS = 2**31 - 1

_TOKEN_ID = Integer(0, MAX_TOKEN_ID)
_STOP_STRING = String(min_length=1)
_STOP_STRINGS = Array(_STOP_STRING, max_items=MAX_STOP_STRINGS)

SAMPLING_FIELDS: dict[str, Field] = {
    "temperature": Field(Number(low=0.0, high=MAX_TEMPERATURE), "0 takes the likeliest token"),
    "top_p": Field(Number(above=0.0, high=1.0), "Sample among this much probability"),
    "top_k": Field(Integer(-1, MAX_TOKEN_ID), "Sample among this many tokens; 0 and -1 are all"),
    "min_p": Field(
        Number(low=0.0, high=1.0), "Leave out tokens less likely than this times the likeliest"
    ),
    "presence_penalty": Field(Number(low=-2.0, high=2.0)),
    "frequency_penalty": Field(Number(low=-2.0, high=2.0)),
    "repetition_penalty": Field(Number(low=0.001, high=1000.0), "1.0 is none"),
    "logit_bias": Field(
        Map(Number(low=-100.0, high=100.0), max_items=4096), "Token id to what its logit gets"
    ),
    "seed": Field(Integer(-(2**63), 2**64 - 1), "The same seed gives the same tokens"),
    "stop": Field(
        Either(((str, _STOP_STRING), (list, _STOP_STRINGS)), "a string or an array of strings"),
        "Strings that end the text",
    ),
    "stop_token_ids": Field(Array(_TOKEN_ID, max_items=1024), "Tokens that end the text"),
    "bad_words": Field(Array(_STOP_STRING, max_items=1024), "Strings that are not generated"),
    "ignore_eos": Field(Boolean(), "Go on after the end-of-sequence token"),
    "min_tokens": Field(Integer(0, MAX_TOKENS), "No end before this many tokens"),
    "include_stop_str_in_output": Field(Boolean()),
    "skip_special_tokens": Field(Boolean(), "Leave special tokens out of the text; the default"),
}

COMMON_FIELDS: dict[str, Field] = {
    "n": Field(Integer(1, MAX_N), "How many answers; they share the prompt's memory"),
    "stream": Field(Boolean(), "Server-sent events"),
    "priority": Field(Integer(-(2**31), 2**31 - 1), "Lower runs earlier; 0 is the default"),
    "cache_salt": Field(
        String(max_length=1024), "Requests share computed prompts only under the same salt"
    ),
    "user": Field(String(), "Accepted without effect"),
}

COMMON_UNSUPPORTED = {
    "prompt_logprobs": "log-probabilities of the prompt are not computed",
    "use_beam_search": "there is no beam search; n samples several answers",
    "length_penalty": "there is no beam search",
    "logits_processors": "code of a request is not run; see logit_bias and structured_outputs",
    "truncate_prompt_tokens": "a prompt that is too long is refused, never cut",
    "spaces_between_special_tokens": "special tokens are written as they are",
    "allowed_token_ids": "see structured_outputs and logit_bias",
    "vllm_xargs": "there are no extra arguments",
    "return_token_ids": "ask /tokenize",
    "return_tokens_as_token_ids": "ask /tokenize",
}

_FIELD_NAME = re.compile(r"[a-z_]+")


def sampling_params(values: Mapping[str, Any], **others: Any) -> SamplingParams:
    """SamplingParams of the checked values of a body. Raises ParameterError."""
    fields = {name: values[name] for name in SAMPLING_FIELDS if name in values}
    if "logit_bias" in fields:
        fields["logit_bias"] = {_token_id(key): bias for key, bias in fields["logit_bias"].items()}
    try:
        return SamplingParams(**fields, **others)
    except (TypeError, ValueError) as error:
        raise naming_parameter(error) from error


def naming_parameter(error: Exception) -> ParameterError:
    """A refusal of the engine as one that names the parameter its message begins with."""
    name = _FIELD_NAME.match(str(error))
    known = name is not None and name[0] in SamplingParams.__dataclass_fields__
    param = name[0] if name is not None and known else "body"
    code = "invalid_type" if isinstance(error, TypeError) else "invalid_value"
    return ParameterError(str(error), param=param, code=code)


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10):
        raise ParameterError(
            f"logit_bias has the key {key[:40]!r}; keys are token ids", param=f"logit_bias.{key}"
        )
    return int(key)
