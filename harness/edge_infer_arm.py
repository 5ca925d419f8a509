"""How our own engine is launched and read: from outside, through `edge-infer bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.arm import ReadError, Reading, Workload, read_speeds


class EdgeInferBench:
    """`edge-infer bench` on a checkpoint folder, a GGUF file, or a built-in model name.

    Args:
        executable: the command line's first words, for example ["edge-infer"].
        model: what the user would type as MODEL.
        version: commit and state of the work tree the executable was built from.
    """

    def __init__(self, executable: list[str], model: str, workload: Workload, version: str) -> None:
        self.name = "edge-infer"
        shown_model = Path(model).name
        self.command = [*executable, "bench", model, *workload.arguments()]
        self.shown_command = ["edge-infer", "bench", shown_model, *workload.arguments()]
        self.about: dict[str, Any] = {
            "engine": "edge-infer",
            "version": version,
            "model": {"name": shown_model},
        }

    def read(self, stdout: str, stderr: str) -> Reading:  # noqa: ARG002 - one interface
        """Return the figures of one run.

        Raises:
            ReadError: if the output is not a JSON list of tests, or a test does not name the ISA
                and kernels that ran, or the tests disagree about them.
        """
        try:
            tests = json.loads(stdout)
        except json.JSONDecodeError as error:
            raise ReadError(f"edge-infer bench printed no JSON: {error}") from error
        if not isinstance(tests, list) or not tests:
            raise ReadError("edge-infer bench printed no list of tests")
        proofs = [_proof(test) for test in tests]
        isas = {proof["isa"] for proof in proofs}
        if len(isas) != 1:
            raise ReadError(f"no path proof: tests ran on different ISAs: {sorted(isas)}")
        kernels = {op: name for proof in proofs for op, name in proof["kernels"].items()}
        return Reading(read_speeds(tests), {**proofs[0], "kernels": kernels})


def _proof(test: dict[str, Any]) -> dict[str, Any]:
    """Return a test's own words on its path, checked for presence and type."""
    isa, kernels = test.get("isa"), test.get("kernels")
    weights_bytes = test.get("weights_bytes")
    if not isinstance(isa, str) or not isa:
        raise ReadError(f"no path proof: isa is {isa!r}")
    if not isinstance(kernels, dict) or not kernels:
        raise ReadError(f"no path proof: kernels is {kernels!r}")
    if not isinstance(weights_bytes, int) or weights_bytes <= 0:
        raise ReadError(f"no path proof: weights_bytes is {weights_bytes!r}")
    return {"isa": isa, "kernels": kernels, "weights_bytes": weights_bytes}
