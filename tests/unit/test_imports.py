"""What importing the package may load."""

from __future__ import annotations

import json
import subprocess
import sys


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a statement loads in a fresh interpreter."""
    code = f"{statement}; import json, sys; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


def test_the_package_loads_next_to_nothing() -> None:
    assert not loaded_by("import edge_infer") & {"torch", "vllm", "transformers", "numpy"}


def test_the_engine_needs_no_torch() -> None:
    loaded = loaded_by("from edge_infer import Engine, SamplingParams")
    assert "edge_infer" in loaded
    assert not loaded & {"torch", "vllm", "transformers", "gguf", "safetensors"}


def test_the_command_line_needs_no_torch() -> None:
    assert not loaded_by("import edge_infer.cli.main") & {"torch", "vllm", "transformers", "gguf"}
