"""Try a kernel path in a process of its own, where an illegal instruction kills only the child.

`python -m edge_infer.devices.probe ISA` is that child: it runs every kernel of the path once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass

PROBE_SECONDS = 60.0


@dataclass(frozen=True)
class ProbeResult:
    """The outcome for one path; `message` is what went wrong, empty when nothing did."""

    isa: str
    ok: bool
    kernels: int
    message: str


def probe_isa(isa: str) -> ProbeResult:
    """Run the child for one path and read how it ended."""
    # The path under test is the argument: a forced one must not interfere.
    environment = {k: v for k, v in os.environ.items() if k != "EDGE_INFER_ISA"}
    command = [sys.executable, "-m", "edge_infer.devices.probe", isa]
    try:
        child = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ProbeResult(isa, False, 0, f"gave no result within {PROBE_SECONDS:.0f} s")
    lines = child.stdout.splitlines()
    if child.returncode == 0 and lines and lines[-1] == "OK":
        return ProbeResult(isa, True, len(lines) - 1, "")
    if child.returncode < 0:
        return ProbeResult(isa, False, 0, f"killed by {_signal_name(-child.returncode)}")
    errors = child.stderr.strip().splitlines()
    text = errors[-1] if errors else f"exit code {child.returncode} and no message"
    return ProbeResult(isa, False, 0, text)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main(arguments: list[str]) -> int:
    """The child: print each op and its kernel, then OK. Exit code 1 and a message otherwise."""
    if len(arguments) != 1:
        print("usage: python -m edge_infer.devices.probe ISA", file=sys.stderr)
        return 2
    from edge_infer import _native

    try:
        kernels = _native.self_test(arguments[0])
    except (RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    for op, kernel in kernels.items():
        print(f"{op}: {kernel}")
    print("OK")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
