"""Refusals: each says what was asked, what is possible, and carries a stable code."""

from __future__ import annotations


class RequestError(ValueError):
    """A request that cannot be served as asked."""

    code = "invalid_request"


class ContextLengthError(RequestError):
    """The prompt, or the prompt and the tokens asked for, exceed the context."""

    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, max_tokens: int | None, max_model_len: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.max_model_len = max_model_len
        asked = f"the prompt has {prompt_tokens} tokens"
        if max_tokens is not None and prompt_tokens < max_model_len:
            asked += f" and max_tokens is {max_tokens}, {prompt_tokens + max_tokens} together"
        super().__init__(
            f"{asked}; the context holds {max_model_len} tokens, at least one of them generated"
        )


class MemoryRefusal(RuntimeError):
    """The model does not fit; the message has the numbers and the nearest setting that fits."""

    def __init__(
        self,
        message: str,
        *,
        needed_bytes: int,
        available_bytes: int,
        longest_context: int | None = None,
    ) -> None:
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.longest_context = longest_context
        super().__init__(message)


class EngineError(RuntimeError):
    """A fault of the engine itself; it fails the requests that were running."""
