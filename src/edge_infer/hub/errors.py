"""The error of everything that finds or fetches a model."""

from __future__ import annotations


class ModelSourceError(ValueError):
    """A model cannot be found, fetched or trusted; the text says what to do about it."""
