"""How llama.cpp is launched and read: the llama-bench arm of a comparison."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from harness.arm import ReadError, Reading, Workload, read_speeds

from baselines.llama_cpp import build

# "load_tensors:          AMX model buffer size =    95.34 MiB"
BUFFER_LINE = re.compile(r"(\S+) model buffer size\s*=\s*([\d.]+) MiB")


def model_buffers(log: str) -> dict[str, float]:
    """Return MiB of weights by buffer type from a verbose load log.

    "AMX" and "CPU_REPACK" hold weights repacked for those kernels; "CPU_Mapped" is the file.
    """
    buffers: dict[str, float] = {}
    for name, size in BUFFER_LINE.findall(log):
        buffers[name] = buffers.get(name, 0.0) + float(size)
    return buffers


class LlamaBench:
    """llama-bench with or without flash attention.

    Args:
        model: a GGUF file.
        flash_attention: llama-bench's -fa.
        amx: whether this machine has AMX-INT8; then weights must lie in the AMX buffer.
    """

    def __init__(self, model: Path, workload: Workload, flash_attention: bool, amx: bool) -> None:
        self.name = f"llama.cpp-fa{int(flash_attention)}"
        executable = build.executable("llama-bench")
        # Verbose loading is the only place where llama.cpp says which buffers it uses.
        rest = [*workload.arguments(), "-fa", str(int(flash_attention)), "-v"]
        self.command = [str(executable), "-m", str(model), *rest]
        self.shown_command = ["llama-bench", "-m", model.name, *rest]
        self._record = build.read_record()
        self.about: dict[str, Any] = {
            "engine": "llama.cpp",
            "version": self._record["release"],
            "build": self._record,
            "model": {
                "name": model.name,
                "bytes": model.stat().st_size,
                "sha256": build.sha256(model),
            },
        }
        self._flash_attention = int(flash_attention)
        self._amx = amx

    def read(self, stdout: str, stderr: str) -> Reading:
        """Return the figures of one run.

        Raises:
            ReadError: if the output is not llama-bench's JSON, another flash-attention setting
                ran, or the log does not show the weights where this machine's kernels need them.
        """
        try:
            tests = json.loads(stdout)
        except json.JSONDecodeError as error:
            raise ReadError(f"llama-bench printed no JSON: {error}") from error
        if not isinstance(tests, list) or not tests:
            raise ReadError("llama-bench printed no list of tests")
        for test in tests:
            ran = test.get("flash_attn")
            if ran != self._flash_attention:
                raise ReadError(f"flash_attn is {ran!r}, asked for {self._flash_attention}")
        buffers = model_buffers(stderr)
        if not buffers:
            raise ReadError("no path proof: the log names no model buffer")
        if self._amx and buffers.get("AMX", 0.0) == 0.0:
            raise ReadError(f"no path proof: this machine has AMX, buffers are {buffers}")
        proof = {
            "model_buffers_mib": buffers,
            "native_features": self._record["native_features"],
            "kv_types": [tests[0].get("type_k"), tests[0].get("type_v")],
            "n_ubatch": tests[0].get("n_ubatch"),
        }
        return Reading(read_speeds(tests), proof)
