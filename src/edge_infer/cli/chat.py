"""`edge-infer chat`: a conversation at the terminal."""

from __future__ import annotations

import readline  # noqa: F401 - line editing and history for console.input
from typing import Annotated

import typer
from rich.console import Console

from edge_infer.cli import generation as g
from edge_infer.cli.errors import clear_errors
from edge_infer.engine.engine import Engine
from edge_infer.engine.errors import RequestError
from edge_infer.engine.sampling_params import SamplingParams
from edge_infer.memory.measure import PeakSampler

HELP = "/exit or Ctrl-D ends, /clear forgets the conversation, Ctrl-C stops an answer"


def chat(
    model: Annotated[str, typer.Argument(help="A folder, a GGUF file, a hub id or a name.")],
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    max_tokens: g.MaxTokens = None,
    temperature: g.Temperature = 0.7,
    top_p: g.TopP = 0.95,
    top_k: g.TopK = 0,
    seed: g.Seed = None,
    threads: g.Threads = None,
    max_model_len: g.MaxModelLen = None,
    kv_dtype: g.KvDtype = "bf16",
    activations: g.Activations = "auto",
    memory_limit: g.MemoryLimit = None,
) -> None:
    """Talk with MODEL."""
    console = Console(stderr=True)
    with clear_errors(), PeakSampler() as peak:
        params = SamplingParams(
            max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed
        )
        options = g.engine_options(
            threads=threads,
            max_model_len=max_model_len,
            kv_dtype=kv_dtype,
            activations=activations,
            memory_limit=memory_limit,
        )
        with Engine(model, options=options) as engine:
            console.print(f"[dim]{HELP}[/]", highlight=False)
            start = [] if system is None else [{"role": "system", "content": system}]
            messages = list(start)
            while (text := _ask(console)) is not None:
                if text == "/clear":
                    messages = list(start)
                    console.print("[dim]the conversation is forgotten[/]")
                elif text.startswith("/"):
                    console.print(f"[dim]{HELP}[/]", highlight=False)
                elif text:
                    messages.append({"role": "user", "content": text})
                    _answer(engine, messages, params, peak, console)


def _ask(console: Console) -> str | None:
    """A line from the user; None at the end."""
    try:
        text = console.input("[bold]> [/]").strip()
    except (EOFError, KeyboardInterrupt):
        console.print()
        return None
    return None if text in ("/exit", "/quit") else text


def _answer(
    engine: Engine,
    messages: list[dict[str, str]],
    params: SamplingParams,
    peak: PeakSampler,
    console: Console,
) -> None:
    """Stream one answer; a refused question leaves the conversation as it was."""
    try:
        answer = g.stream_answer(engine, engine.encode_chat(messages), params)
    except RequestError as error:
        messages.pop()
        console.print(f"[bold red]error:[/] {error}; /clear starts afresh", highlight=False)
        return
    messages.append({"role": "assistant", "content": answer.text})
    peak.sample()
    g.print_figures(engine, answer, peak, short=True)
