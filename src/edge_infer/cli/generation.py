"""What `run` and `chat` share: their options, the streaming loop and the closing figures."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from edge_infer.engine.engine import Engine
from edge_infer.engine.options import EngineOptions
from edge_infer.engine.sampling_params import SamplingParams
from edge_infer.memory.limits import parse_bytes
from edge_infer.memory.measure import PeakSampler, address_memory, mapping_memory

MaxTokens = Annotated[
    int | None, typer.Option("-n", "--max-tokens", help="Default: to the end of the context.")
]
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token.")]
TopP = Annotated[float, typer.Option(help="Sample among this much probability.")]
TopK = Annotated[int, typer.Option(help="Sample among this many tokens, 0 for all.")]
Seed = Annotated[int | None, typer.Option(help="Repeatable sampling.")]
Threads = Annotated[
    int | None, typer.Option("-t", "--threads", help="Default: what the machine grants.")
]
MaxModelLen = Annotated[
    int | None, typer.Option(help="Context in tokens. Default: the checkpoint's, up to 8192.")
]
KvDtype = Annotated[str, typer.Option(help="KV cache: bf16, f16, f32 or int8.")]
Activations = Annotated[str, typer.Option(help="Input of 4- and 8-bit weights: int8, bf16, auto.")]
MemoryLimit = Annotated[
    str | None, typer.Option(help="Memory to plan for, such as 2GiB. Default: what is there.")
]


def engine_options(
    *,
    threads: int | None,
    max_model_len: int | None,
    kv_dtype: str,
    activations: str,
    memory_limit: str | None,
) -> EngineOptions:
    """Options for one sequence at a time."""
    return EngineOptions(
        max_model_len=max_model_len,
        max_num_seqs=1,
        kv_dtype=kv_dtype,  # type: ignore[arg-type]  # checked by EngineOptions
        activations=activations,  # type: ignore[arg-type]
        threads=threads,
        memory_limit_bytes=None if memory_limit is None else parse_bytes(memory_limit),
    )


@dataclass
class Answer:
    """A streamed answer and when its parts came."""

    text: str
    prompt_tokens: int
    output_tokens: int
    seconds_to_first: float
    seconds: float
    finish_reason: str

    @property
    def prefill_ts(self) -> float:
        """Prompt tokens per second, up to the first token."""
        return self.prompt_tokens / self.seconds_to_first

    @property
    def decode_ts(self) -> float | None:
        """Tokens per second after the first; None when there is only one."""
        after = self.seconds - self.seconds_to_first
        return (self.output_tokens - 1) / after if self.output_tokens > 1 else None


def stream_answer(engine: Engine, prompt: Sequence[int] | str, params: SamplingParams) -> Answer:
    """Print an answer as it comes. Ctrl-C ends the answer, not the program."""
    started = time.perf_counter()
    stream = engine.stream(prompt, params)
    text, tokens, first, reason = "", 0, None, "stopped by the user"
    try:
        for chunk in stream:
            first = first or time.perf_counter()
            tokens += len(chunk.token_ids)
            text += chunk.text
            reason = chunk.finish_reason or reason
            sys.stdout.write(chunk.text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write(" [stopped]")
    finally:
        stream.close()
    sys.stdout.write("\n")
    ended = time.perf_counter()
    prompt_tokens = len(stream.prompt_token_ids)
    return Answer(text, prompt_tokens, tokens, (first or ended) - started, ended - started, reason)


def print_figures(
    engine: Engine, answer: Answer, peak: PeakSampler, *, short: bool = False
) -> None:
    """The closing lines: times and speeds, and unless `short` peak memory and the path that ran."""
    model = engine.model
    weights = sum(mapping_memory(path) for path in model.checkpoint.files)
    kv = address_memory(model.kv.address, model.kv.nbytes)
    total = max(peak.peak_total, weights + kv)
    decode = f"{answer.output_tokens} tokens"
    if answer.decode_ts is not None:
        decode += f" at {answer.decode_ts:.1f} tok/s"
    ends = {
        "stop": "ended by itself",
        "length": f"cut at the limit (context {engine.max_model_len}, -n)",
    }
    speed = [
        f"load {model.load_seconds:.2f} s",
        f"first token {answer.seconds_to_first * 1e3:.0f} ms",
        f"prefill {answer.prompt_tokens} tokens at {answer.prefill_ts:.0f} tok/s",
        f"decode {decode}",
        ends.get(answer.finish_reason, answer.finish_reason),
    ]
    path = [
        f"peak memory {total / 2**20:.0f} MiB (weights {weights / 2**20:.0f}, "
        f"KV {kv / 2**20:.1f}, rest {(total - weights - kv) / 2**20:.0f})",
        f"{model.threads.threads} threads, {kernel_path(engine)}",
        f"weights {weight_formats(engine)}",
    ]
    console = Console(stderr=True)
    for parts in (speed,) if short else (speed, path):
        console.print(f"[dim]{' · '.join(parts)}[/]", highlight=False, soft_wrap=True)


def weight_formats(engine: Engine) -> str:
    """How many linears have each real format, as `210 int4 g32, 1 int8 g32`."""
    counts = Counter(engine.model.formats.values())
    return ", ".join(f"{n} {name}" for name, n in counts.most_common())


def kernel_path(engine: Engine) -> str:
    """The selected ISA and the linear kernels that really ran, most used first."""
    calls = engine.model.runner.kernel_calls()
    linears = sorted((k for k in calls if k.startswith("linear_")), key=lambda k: -calls[k])
    return f"{engine.model.isa}: {', '.join(linears)}"
