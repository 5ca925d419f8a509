"""A server under test: start, readiness, CPU time, memory, and a clean end."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from harness.memory import Pss, process_tree, tree_pss

HOST = "127.0.0.1"
PROC = Path("/proc")
READY_POLL_SECONDS = 0.005
STOP_SECONDS = 20.0


class ServerError(RuntimeError):
    """A server did not start, did not answer, or did not end as it should."""


def free_port() -> int:
    """Return a TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


def get(port: int, path: str, timeout_seconds: float = 10.0) -> tuple[int, str]:
    """Return status and text of a GET.

    Raises:
        OSError: if the server cannot be reached or hangs up.
    """
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout_seconds)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace")
    except http.client.HTTPException as error:
        raise ConnectionError(f"GET {path}: {error!r}") from error
    finally:
        connection.close()


def tree_cpu_seconds(pid: int, proc: Path = PROC) -> float:
    """Return the CPU time of a process tree, children it waited for included.

    Field order: proc(5), /proc/pid/stat; 14 to 17 are user and system time, own and waited for.
    """
    ticks = 0
    for member in process_tree(pid, proc):
        try:
            text = (proc / str(member) / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(int(field) for field in text.rpartition(")")[2].split()[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


class ServerProcess:
    """A running server; leaving the context ends it and everything it started.

    Args:
        command: command line that serves on `port`.
        log: file for both output streams.
        ready_path: answers 200 once the server takes requests.

    Attributes:
        ready_ms: from the start of the process to the first 200.
    """

    def __init__(
        self, command: list[str], port: int, log: Path, ready_path: str, timeout_seconds: float
    ) -> None:
        self.port = port
        self._log = log
        with log.open("wb") as file:
            begun = time.perf_counter()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_ready(ready_path, begun + timeout_seconds)
        except BaseException:
            self.kill()
            raise
        self.ready_ms = (time.perf_counter() - begun) * 1e3

    def _wait_ready(self, path: str, deadline: float) -> None:
        """Ask until the answer is 200."""
        while True:
            status = self._process.poll()
            if status is not None:
                raise ServerError(f"ended with status {status} before ready: {self.log_tail()}")
            try:
                if get(self.port, path, 2.0)[0] == 200:
                    return
            except OSError:
                pass  # not listening yet
            if time.perf_counter() > deadline:
                raise ServerError(f"{path} did not answer 200 in time: {self.log_tail()}")
            time.sleep(READY_POLL_SECONDS)

    @property
    def pid(self) -> int:
        """Process id of the tree's root."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the server still runs."""
        return self._process.poll() is None

    def cpu_seconds(self) -> float:
        """CPU time of the whole tree so far."""
        return tree_cpu_seconds(self.pid)

    def pss(self) -> Pss:
        """Memory of the whole tree now."""
        return tree_pss(self.pid)

    def log_text(self) -> str:
        """Everything the server printed so far."""
        return self._log.read_text(errors="replace")

    def log_tail(self) -> str:
        """The end of what it printed."""
        return self.log_text().strip()[-600:]

    def stop(self) -> int:
        """End the server by SIGTERM and return its status.

        Raises:
            ServerError: if it has not ended after a while; it is killed then.
        """
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise ServerError(f"still running {STOP_SECONDS:g} s after SIGTERM") from error
        finally:
            self.kill()

    def kill(self) -> None:
        """End whatever is left of it at once."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


@contextmanager
def serving(
    command: Callable[[int], list[str]], ready_path: str, timeout_seconds: float
) -> Iterator[ServerProcess]:
    """Run a server on a free port, its log in a folder that ends with it.

    Args:
        command: makes the command line that serves on a port.

    Raises:
        ServerError: if it is not ready within `timeout_seconds`.
    """
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        log = Path(folder) / "log"
        with ServerProcess(command(port), port, log, ready_path, timeout_seconds) as server:
            yield server
