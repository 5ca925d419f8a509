"""The one refusal of structured output."""


class GrammarError(ValueError):
    """A schema, expression or grammar that cannot be enforced; says which part and why."""

    code = "invalid_grammar"
