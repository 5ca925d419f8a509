"""The one error that readers and converters of checkpoint files raise."""

from pathlib import Path


class CheckpointError(ValueError):
    """A file or folder cannot be read as a checkpoint; the text names file, tensor and field."""


def fail(path: Path | str, message: str, *, tensor: str | None = None) -> CheckpointError:
    """Build an error in the form ``file: tensor 'name': message``."""
    where = f"{path}: " if tensor is None else f"{path}: tensor {tensor!r}: "
    return CheckpointError(where + message)
