"""A request refused because of one of its parameters, which the error names."""

from __future__ import annotations

from edge_infer.engine.errors import RequestError


class ParameterError(RequestError):
    """`param` is the path of the parameter in the request's body, e.g. `messages[0].content`.

    `code` is stable: `invalid_value`, `invalid_type`, `missing_required_parameter`, ...
    """

    def __init__(self, message: str, *, param: str, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code

    def renamed(self, old: str, new: str) -> ParameterError:
        """The same refusal where a part of the path has another name."""
        message = str(self).replace(old, new)
        return ParameterError(message, param=self.param.replace(old, new), code=self.code)
