"""An arm: one engine with its settings, launched as a process and read from its output."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.machine import Load, load_now, others_share, steal_share
from harness.memory import PeakPss, Pss

SAMPLE_SECONDS = 1 / 20


class ReadError(ValueError):
    """An arm's output is not what a successful, proven run would have printed."""


@dataclass(frozen=True)
class Workload:
    """What every arm is asked to do, in llama-bench's terms.

    Attributes:
        n_prompt, n_gen: tokens of a prefill test and of a decode test.
        depths: tokens already in the KV cache before each test.
        repetitions: timed repetitions inside one process, after its own warm-up.
    """

    n_prompt: int
    n_gen: int
    depths: tuple[int, ...]
    threads: int
    repetitions: int

    def labels(self) -> list[str]:
        """Return the name of every test in this workload, for example "tg128@d512"."""
        return [
            test_label(n_prompt, n_gen, depth)
            for depth in self.depths
            for n_prompt, n_gen in ((self.n_prompt, 0), (0, self.n_gen))
        ]

    def arguments(self) -> list[str]:
        """Return the command-line arguments llama-bench and `edge-infer bench` share."""
        depths = ",".join(str(depth) for depth in self.depths)
        tests = ["-p", str(self.n_prompt), "-n", str(self.n_gen), "-d", depths]
        return [*tests, "-t", str(self.threads), "-r", str(self.repetitions), "-o", "json"]


@dataclass(frozen=True)
class Reading:
    """What one process reported.

    Attributes:
        speeds: test label to tokens per second.
        proof: evidence of the code path that ran, as the engine itself tells it.
    """

    speeds: dict[str, float]
    proof: dict[str, Any]


class Arm(Protocol):
    """One engine with its settings. `shown_command` is `command` without this machine's paths."""

    name: str
    command: list[str]
    shown_command: list[str]
    about: dict[str, Any]

    def read(self, stdout: str, stderr: str) -> Reading:
        """Return what a run reported; raise ReadError if it is incomplete or proves no path."""
        ...


@dataclass(frozen=True)
class Run:
    """One process of one arm. `failure` is None exactly when `reading` is not.

    Attributes:
        before, after: the machine's load around the run.
        cpu_seconds: CPU time of the process and the descendants it waited for.
        steal, others: shares of CPU time taken by the hypervisor and by other processes.
        peak: largest memory seen, for a run that sampled it.
    """

    arm: str
    reading: Reading | None
    failure: str | None
    wall_seconds: float
    cpu_seconds: float
    before: Load
    after: Load
    steal: float
    others: float
    peak: Pss | None
    memory_samples: int


def test_label(n_prompt: int, n_gen: int, n_depth: int) -> str:
    """Return llama-bench's name of a test: pp for prefill, tg for decode, @d for depth."""
    name = f"pp{n_prompt}" if n_gen == 0 else f"tg{n_gen}"
    if n_prompt and n_gen:
        name = f"pp{n_prompt}+tg{n_gen}"
    return f"{name}@d{n_depth}" if n_depth else name


def read_speeds(tests: list[dict[str, Any]]) -> dict[str, float]:
    """Return tokens per second by label from a llama-bench style list of tests.

    Raises:
        ReadError: if a field is missing, a value is not a positive number, or a test repeats.
    """
    speeds: dict[str, float] = {}
    for test in tests:
        try:
            label = test_label(test["n_prompt"], test["n_gen"], test["n_depth"])
            speed = test["avg_ts"]
        except KeyError as error:
            raise ReadError(f"a test has no field {error}") from error
        if not isinstance(speed, (int, float)) or not 0 < speed < float("inf"):
            raise ReadError(f"{label}: avg_ts is {speed!r}, not a positive number")
        if label in speeds:
            raise ReadError(f"{label}: reported twice")
        speeds[label] = float(speed)
    return speeds


def _wait(process: subprocess.Popen[bytes], deadline: float, memory: PeakPss | None) -> bool:
    """Wait for the process, sampling memory if asked; return False when the deadline passed."""
    while True:
        step = deadline - time.monotonic()
        if memory is not None:
            memory.sample()
            step = min(step, SAMPLE_SECONDS)
        try:
            process.wait(max(step, 0))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                return False
        else:
            return True


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and everything it started; it leads its own session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _children_cpu_seconds() -> float:
    """Return the CPU time of all children waited for so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _exit_failure(code: int, stderr: str) -> str:
    """Return a sentence on how a process ended badly, with the end of its error output."""
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
    return f"ended with {how}: {stderr.strip()[-400:]}"


def run(arm: Arm, labels: list[str], timeout_seconds: float, sample_memory: bool = False) -> Run:
    """Run an arm once and return its figures, or why it has none.

    Reading PSS walks the page tables and would slow the engine down, so timed runs leave
    `sample_memory` off.
    """
    before, start, cpu_start = load_now(), time.monotonic(), _children_cpu_seconds()
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "stdout", Path(folder) / "stderr"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                arm.command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            memory = PeakPss(process.pid) if sample_memory else None
            try:
                finished = _wait(process, start + timeout_seconds, memory)
            finally:
                _kill_group(process)
        wall, cpu = time.monotonic() - start, _children_cpu_seconds() - cpu_start
        texts = (out.read_text(errors="replace"), err.read_text(errors="replace"))
    after = load_now()
    reading, failure = None, None
    if not finished:
        failure = f"not finished after {timeout_seconds:g} s"
    elif process.returncode != 0:
        failure = _exit_failure(process.returncode, texts[1])
    else:
        try:
            reading = arm.read(*texts)
            missing = [label for label in labels if label not in reading.speeds]
            if missing:
                raise ReadError(f"no figure for {', '.join(missing)}")
        except ReadError as error:
            reading, failure = None, str(error)
    return Run(
        arm.name,
        reading,
        failure,
        wall,
        cpu,
        before,
        after,
        steal_share(before, after),
        others_share(before, after, cpu),
        memory.peak if memory else None,
        memory.samples if memory else 0,
    )
