"""`edge-infer serve`: the OpenAI-compatible server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from edge_infer.cli import generation as g
from edge_infer.cli.errors import clear_errors


def serve(
    model: Annotated[str, typer.Argument(help="A folder, a GGUF file, a hub id or a name.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 for any free one.")] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="Opens the API; may be repeated. Also EDGE_INFER_API_KEY."),
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="The id clients use. Default: the model's name.")
    ] = None,
    max_model_len: g.MaxModelLen = None,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences that run at once.")] = 8,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens of one step.")] = 512,
    kv_dtype: g.KvDtype = "bf16",
    kv_budget: Annotated[
        str | None, typer.Option(help="KV cache, such as 1GiB. Default: what is needed.")
    ] = None,
    memory_limit: g.MemoryLimit = None,
    threads: g.Threads = None,
    isa: Annotated[str | None, typer.Option(help="Kernel path. Default: the best.")] = None,
    activations: g.Activations = "auto",
    batch_invariant: Annotated[
        bool, typer.Option(help="The same answers alone or beside others.")
    ] = False,
    prefix_caching: Annotated[
        bool, typer.Option(help="Answer from computed blocks of the same tokens.")
    ] = True,
    num_speculative_tokens: Annotated[
        int, typer.Option(help="Draft tokens looked up in the text, for texts that repeat.")
    ] = 0,
    max_waiting: Annotated[int, typer.Option(help="Sequences that may wait, then 503.")] = 256,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Origin whose pages may call; may be repeated.")
    ] = None,
    max_body_bytes: Annotated[int, typer.Option(help="Longest body of a request.")] = 32 << 20,
    ssl_certfile: Annotated[str | None, typer.Option(help="TLS certificate, PEM.")] = None,
    ssl_keyfile: Annotated[str | None, typer.Option(help="TLS key, PEM.")] = None,
    ignore_unknown_parameters: Annotated[
        bool, typer.Option(help="Name them in a header instead of refusing them.")
    ] = False,
    page: Annotated[bool, typer.Option(help="A chat page at /.")] = True,
    log_level: Annotated[str, typer.Option(help="critical to debug; info logs access.")] = (
        "warning"
    ),
) -> None:
    """Serve MODEL over HTTP: OpenAI's and Anthropic's APIs, and a chat page at /."""
    from edge_infer.engine.engine import Engine
    from edge_infer.engine.options import EngineOptions
    from edge_infer.memory.limits import parse_bytes
    from edge_infer.server.run import base_url, bind, run_server
    from edge_infer.server.settings import Settings

    with clear_errors():
        keys = list(api_key or ())
        if environment_key := os.environ.get("EDGE_INFER_API_KEY"):
            keys.append(environment_key)
        settings = Settings(
            host=host,
            port=port,
            api_keys=tuple(keys),
            cors_origins=tuple(cors_origin or ()),
            max_body_bytes=max_body_bytes,
            ssl_certfile=ssl_certfile,
            ssl_keyfile=ssl_keyfile,
            served_model_name=served_model_name or _name(model),
            max_waiting=max_waiting,
            ignore_unknown_parameters=ignore_unknown_parameters,
            no_page=not page,
            log_level=log_level,
        )
        options = EngineOptions(
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            kv_dtype=kv_dtype,  # type: ignore[arg-type]  # checked by EngineOptions
            kv_budget_bytes=None if kv_budget is None else parse_bytes(kv_budget),
            activations=activations,  # type: ignore[arg-type]
            batch_invariant=batch_invariant,
            prefix_caching=prefix_caching,
            num_speculative_tokens=num_speculative_tokens,
            threads=threads,
            isa=isa,
            memory_limit_bytes=None if memory_limit is None else parse_bytes(memory_limit),
        )
        bound = bind(settings)  # before the model: a port in use is known at once
        engine = Engine(model, options=options)
        line = f"listening on {base_url(settings, bound)} · {_description(engine, settings)}"
        code = run_server(engine, settings, bound, lambda: print(line, flush=True))
    raise typer.Exit(code)


def _name(model: str) -> str:
    """The model's name for clients: a file's or folder's own name, an id as it is."""
    path = Path(model)
    return path.resolve().name if path.exists() else model


def _description(engine: object, settings: object) -> str:
    from edge_infer.engine.engine import Engine
    from edge_infer.server.settings import Settings

    assert isinstance(engine, Engine)
    assert isinstance(settings, Settings)
    plan, mib = engine.model.plan, 2**20
    return (
        f"model {settings.served_model_name} · context {plan.max_model_len} · "
        f"weights {plan.weights_bytes / mib:.0f} MiB, KV {plan.kv_bytes / mib:.0f} MiB · "
        f"{engine.model.isa}, {engine.model.threads.threads} threads"
    )
