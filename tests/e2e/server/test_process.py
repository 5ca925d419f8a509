"""The server as a process: how it starts, how it is refused, how it ends."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.server.conftest import RunningServer
from tests.e2e.server.plain_http import request

from edge_infer.memory.measure import process_tree_memory
from edge_infer.server.run import EXIT_FATAL

PROGRAM = Path(sys.executable).with_name("edge-infer")

# The engine is real; its steps fail from the fourth on, as they would after a fault of the machine.
FAILING = """
import sys
from edge_infer.engine import runner

real = runner.Runner.step
count = 0

def step(self, scheduled):
    global count
    count += 1
    if count > 3:
        raise RuntimeError("the memory is gone")
    return real(self, scheduled)

runner.Runner.step = step
sys.argv = ["edge-infer", "serve", "smollm2-135m", "--port", "0"]
from edge_infer.cli.main import app
app()
"""


def test_a_port_in_use_is_one_clear_line(server: RunningServer) -> None:
    port = server.base_url.rsplit(":", 1)[1]
    started = time.monotonic()
    ended = subprocess.run(
        [PROGRAM, "serve", "smollm2-135m", "--port", port],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"error: cannot listen on 127.0.0.1:{port}: ")
    assert len(ended.stderr.splitlines()) == 1
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--port", "70000"), "port must be an integer of 0 to 65535"),
        (("--ssl-keyfile", "k.pem"), "belong together"),
        (("--log-level", "loud"), "log_level must be one of"),
        (("--max-num-seqs", "0"), "max_num_seqs"),
        (("--api-key", ""), "API key is empty"),
        (("--kv-budget", "much"), "much"),
    ],
)
def test_options_that_make_no_sense(options: tuple[str, ...], says: str) -> None:
    ended = subprocess.run(
        [PROGRAM, "serve", "smollm2-135m", *options],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 1
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_engine_that_cannot_go_on_ends_the_process() -> None:
    command = [sys.executable, "-c", FAILING]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[2]
            statuses, codes = [], []
            for _ in range(3):  # as many failed steps in a row as end it
                answer = request(url, "/v1/completions", {"prompt": "One, two,", "max_tokens": 9})
                statuses.append(answer.status)
                codes.append(answer.error["code"])
            assert statuses == [500] * 3
            assert codes == ["engine_error"] * 3
            assert process.wait(20) == EXIT_FATAL
        finally:
            process.kill()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
            ),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    server = start_server("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    assert server.base_url.startswith("https://")
    context = ssl.create_default_context(cafile=certificate)
    with urllib.request.urlopen(f"{server.base_url}/ready", context=context, timeout=20) as answer:
        assert answer.status == 200


def test_a_body_that_stalls_holds_nobody_up(server: RunningServer) -> None:
    host, port = server.base_url.removeprefix("http://").split(":")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"
    with socket.create_connection((host, int(port)), 10) as stalled:
        stalled.sendall(head)
        assert request(server.base_url, "/health").status == 200


def test_idle_memory_beyond_weights_and_kv(start_server: Callable[..., RunningServer]) -> None:
    server = start_server()
    status = request(server.base_url, "/v1/status").json
    pss = process_tree_memory(server.process.pid).pss
    # Idle, no page of the KV cache has been touched.
    assert pss - status["model"]["weights_bytes"] <= 150e6
