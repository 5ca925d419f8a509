"""`edge-infer run`: answer one prompt."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from edge_infer.cli import generation as g
from edge_infer.cli.errors import clear_errors
from edge_infer.engine.engine import Engine
from edge_infer.engine.sampling_params import SamplingParams
from edge_infer.memory.measure import PeakSampler


def run(
    model: Annotated[str, typer.Argument(help="A folder, a GGUF file, a hub id or a name.")],
    prompt: Annotated[str, typer.Argument(help="The question; - reads standard input.")],
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Complete the text, no chat template.")
    ] = False,
    max_tokens: g.MaxTokens = None,
    temperature: g.Temperature = 0.0,
    top_p: g.TopP = 1.0,
    top_k: g.TopK = 0,
    seed: g.Seed = None,
    threads: g.Threads = None,
    max_model_len: g.MaxModelLen = None,
    kv_dtype: g.KvDtype = "bf16",
    activations: g.Activations = "auto",
    memory_limit: g.MemoryLimit = None,
) -> None:
    """Answer PROMPT with MODEL, streaming, and close with a line of figures."""
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
        text = sys.stdin.read() if prompt == "-" else prompt
        with Engine(model, options=options) as engine:
            chat = not raw and engine.tokenizer is not None and engine.tokenizer.chat_template
            if chat:
                messages = [{"role": "user", "content": text}]
                if system is not None:
                    messages.insert(0, {"role": "system", "content": system})
                answer = g.stream_answer(engine, engine.encode_chat(messages), params)
            elif system is not None:
                raise ValueError("--system needs a chat template: this model, or --raw, has none")
            else:
                answer = g.stream_answer(engine, text, params)
            peak.sample()
            g.print_figures(engine, answer, peak)
