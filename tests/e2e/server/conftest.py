"""A real server process with SmolLM2, one for all tests that do not need their own."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

START_SECONDS = 60.0


@dataclass(frozen=True)
class RunningServer:
    """A server that listens."""

    base_url: str
    process: subprocess.Popen[str]


@contextlib.contextmanager
def _running(
    *options: str,
    model: str = "smollm2-135m",
    env: dict[str, str] | None = None,
    ends: bool = False,
) -> Iterator[RunningServer]:
    program = shutil.which("edge-infer", path=os.path.dirname(sys.executable)) or "edge-infer"
    command = [program, "serve", model, "--port", "0"]
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()  # it prints one line when it listens, or ends
        found = re.match(r"listening on (\S+)", line)
        assert found, f"the server did not start: {line}{process.stderr.read()}"
        yield RunningServer(found[1], process)
        assert ends or process.poll() is None, "the server ended during the tests"
    finally:
        process.terminate()
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
    assert process.returncode == 0


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """The server that tests share."""
    with _running() as running:
        yield running


@pytest.fixture
def start_server() -> Iterator[Callable[..., RunningServer]]:
    """start_server(*options, model=.., env=.., ends=..) starts another one, ended after the test.

    `ends` says that the test itself ends it.
    """
    with contextlib.ExitStack() as stack:

        def start(*options: str, **settings: Any) -> RunningServer:
            return stack.enter_context(_running(*options, **settings))

        yield start
