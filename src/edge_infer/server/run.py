"""Run the server until it is told to stop, or its engine cannot go on."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
import uvloop

from edge_infer.engine.engine import Engine
from edge_infer.server.app import create_app
from edge_infer.server.async_engine import AsyncEngine
from edge_infer.server.settings import Settings

EXIT_FATAL = 70  # EX_SOFTWARE: a supervisor should start another process
GRACE_SECONDS = 3.0  # what runs when the server is told to stop may end by itself within
BACKLOG = 1024


def bind(settings: Settings) -> socket.socket:
    """A bound socket that does not listen yet. Raises OSError with a clear message."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        bound.close()
        reason = getattr(error, "strerror", None) or error
        raise OSError(f"cannot listen on {settings.host}:{settings.port}: {reason}") from error
    return bound


def base_url(settings: Settings, bound: socket.socket) -> str:
    """The URL of a bound socket."""
    port = bound.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{settings.scheme}://{host}:{port}"


def run_server(
    engine: Engine,
    settings: Settings,
    bound: socket.socket,
    on_listening: Callable[[], None],
) -> int:
    """Serve until a signal or a fault of the engine; returns the exit code."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(engine, settings, bound, on_listening))


class _Server(uvicorn.Server):
    """uvicorn's server with signals left to us: it would raise them again when it is done."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take no signals."""
        yield


async def _serve(
    engine: Engine, settings: Settings, bound: socket.socket, on_listening: Callable[[], None]
) -> int:
    async_engine = AsyncEngine(engine, max_waiting=settings.max_waiting)
    app = create_app(async_engine, settings)
    server = _Server(
        uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="on",
            access_log=settings.log_level in ("info", "debug"),
            log_level=settings.log_level,
            server_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=round(GRACE_SECONDS) + 2,
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
        )
    )
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if stopping.is_set():
            server.force_exit = True  # the second signal does not wait
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    watching = asyncio.create_task(_stop(async_engine, server, stopping))
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        if server.started:
            on_listening()
        await serving
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        # The loop would give them back their default, which kills a process that is ending well.
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
    if not server.started:
        return 1
    return 0 if async_engine.fatal_error is None else EXIT_FATAL


async def _stop(engine: AsyncEngine, server: _Server, stopping: asyncio.Event) -> None:
    """Stop the server once it is told to, or once the engine cannot go on."""
    waits = [asyncio.create_task(event.wait()) for event in (stopping, engine.fatal)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    server.should_exit = True
    if not engine.fatal.is_set():
        await asyncio.sleep(GRACE_SECONDS)
        await engine.stop()  # fails what still runs; its streams say so and end
