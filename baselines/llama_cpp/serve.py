"""How llama-server is launched and read: the peer of `edge-infer serve`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.arm import ReadError
from harness.server_arms import PROOF_SECONDS, Seats, completion_body, launch

from baselines.llama_cpp import build
from baselines.llama_cpp.read import model_buffers

# Lines of a verbose load, less their time stamps; the measured runs log at the default level.
SYSTEM_LINE = re.compile(r"system_info: (.+)")
CONTEXT_LINE = re.compile(
    r"llama_context: (n_ctx_seq|n_batch|n_ubatch|flash_attn|kv_unified)\s+= (\S+)"
)
KV_LINE = re.compile(r"llama_kv_cache: size =.*")
VERBOSE = "4"


@dataclass(frozen=True)
class Variant:
    """One way to run llama-server.

    Attributes:
        flash_attention: -fa on or off.
        model: a GGUF file.
        model_note: how its values relate to ours, for example "same weights".
    """

    flash_attention: bool
    model: Path
    model_note: str

    @property
    def name(self) -> str:
        """Arm name: quantization from the file's name, and the flash-attention setting."""
        kind = self.model.stem.rpartition(".")[2].lower()
        return f"llama-server-{kind}-fa{int(self.flash_attention)}"


class LlamaServer:
    """llama-server with one slot for each stream, continuous batching and prompt cache on.

    Args:
        threads: for prompts and for generation alike.
        extra: more arguments for the server.
    """

    ready_path = "/health"

    def __init__(self, variant: Variant, threads: int, extra: list[str]) -> None:
        self.variant = variant
        self.name = variant.name
        self._executable = build.executable("llama-server")
        self._threads = threads
        self._extra = extra
        self._record = build.read_record()
        self.about: dict[str, Any] = {
            "engine": "llama.cpp",
            "version": self._record["release"],
            "build": self._record,
            "model": {
                "name": variant.model.name,
                "note": variant.model_note,
                "bytes": variant.model.stat().st_size,
                "sha256": build.sha256(variant.model),
            },
        }

    def _arguments(self, seats: Seats) -> list[str]:
        """Return all that decides speed; -c is the sum over the slots."""
        threads = str(self._threads)
        flash = "on" if self.variant.flash_attention else "off"
        return [
            *("-np", str(seats.streams), "-c", str(seats.streams * seats.context_tokens)),
            *("-t", threads, "-tb", threads, "-fa", flash),
            # Every slot keeps its own prompt; copies of prompts in RAM would only cost time.
            *("--cont-batching", "--cache-prompt", "--cache-ram", "0", "--metrics", "--no-ui"),
            *self._extra,
        ]

    def command(self, port: int, seats: Seats) -> list[str]:
        """Return the command line that serves on `port`."""
        where = ["--host", "127.0.0.1", "--port", str(port)]
        model = ["-m", str(self.variant.model)]
        return [str(self._executable), *model, *where, *self._arguments(seats)]

    def shown_command(self, seats: Seats) -> list[str]:
        """Return the same without paths and port."""
        return ["llama-server", "-m", self.variant.model.name, *self._arguments(seats)]

    def body(self, prompt: list[int], n_gen: int) -> dict[str, Any]:
        """Return a greedy streaming completions request for exactly `n_gen` tokens."""
        return completion_body(prompt, n_gen, self.variant.model.stem)

    def proof(self, seats: Seats) -> dict[str, Any]:
        """Load once more with a verbose log and return what it says about the code path.

        Raises:
            ReadError: if the log is not that of the setting asked for.
            ServerError: if the server does not start.
        """
        with launch(self, seats, PROOF_SECONDS, ("-lv", VERBOSE)) as server:
            text = server.log_text()
        return read_proof(text, self.variant.flash_attention, seats)


def read_proof(log: str, flash_attention: bool, seats: Seats) -> dict[str, Any]:
    """Return system line, weight buffers and context settings of a verbose load log.

    Raises:
        ReadError: if one is missing or differs from what was asked for.
    """
    system, kv, buffers = SYSTEM_LINE.search(log), KV_LINE.search(log), model_buffers(log)
    context = dict(CONTEXT_LINE.findall(log))
    if system is None or kv is None or not buffers:
        raise ReadError("no path proof: the log lacks system_info, KV cache or model buffers")
    wanted = "enabled" if flash_attention else "disabled"
    if context.get("flash_attn") != wanted:
        raise ReadError(f"flash_attn is {context.get('flash_attn')}, asked for {wanted}")
    if int(context.get("n_ctx_seq", 0)) < seats.context_tokens:
        raise ReadError(f"a slot has {context.get('n_ctx_seq')} tokens, not {seats.context_tokens}")
    return {
        "system_info": system.group(1).strip(),
        "model_buffers_mib": buffers,
        "kv_cache": kv.group(0).strip(),
        **context,
    }
