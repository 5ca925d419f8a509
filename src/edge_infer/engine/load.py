"""From a model's folder to a program that can run: open, plan, admit, then map and build."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from edge_infer import _native
from edge_infer.checkpoint.architectures import check_shapes, expected_tensors
from edge_infer.checkpoint.reader import Checkpoint, open_checkpoint
from edge_infer.devices.threads import ThreadPlan, choose_threads
from edge_infer.engine.admission import MemoryPlan, plan_memory, step_limits
from edge_infer.engine.options import SMALL_MODEL_WEIGHTS, EngineOptions
from edge_infer.engine.runner import Runner
from edge_infer.memory.limits import memory_limit
from edge_infer.memory.measure import process_tree_memory
from edge_infer.models import build_model
from edge_infer.models.config import Config
from edge_infer.program.builder import ActivationName, kv_type
from edge_infer.program.spec import ProgramSpec, StepLimits


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, with everything its report needs."""

    checkpoint: Checkpoint
    options: EngineOptions
    spec: ProgramSpec
    plan: MemoryPlan
    limits: StepLimits
    isa: str
    activations: ActivationName
    threads: ThreadPlan
    kv: _native.KvCache
    runner: Runner
    load_seconds: float

    @property
    def formats(self) -> dict[str, str]:
        """Each linear's real format, as `int4 g128` or `bf16`, by module name."""
        return {
            t.name: f"{t.format} g{t.group_size}" if t.group_size else t.format
            for t in self.spec.linears
        }


def choose_activations(checkpoint: Checkpoint, options: EngineOptions) -> ActivationName:
    """The activations that `auto` means for this checkpoint, or what was asked for."""
    if options.activations != "auto":
        return options.activations
    small = sum(entry.elements for entry in checkpoint.entries()) < SMALL_MODEL_WEIGHTS
    return "bf16" if small else "int8"


def load_model(path: Path, options: EngineOptions) -> LoadedModel:
    """Load the checkpoint in a folder.

    Raises CheckpointError or ConfigError when it cannot be served, MemoryRefusal before
    anything is loaded when it does not fit.
    """
    started = time.perf_counter()
    isa = options.isa or _native.selected_isa()
    if isa not in _native.available_isas():
        raise ValueError(
            f"isa {isa!r} cannot run here; this machine has {', '.join(_native.available_isas())}"
        )
    threads = choose_threads(options.threads)
    checkpoint = open_checkpoint(path)
    config_path = path / "config.json"
    check_shapes(checkpoint.shapes(), expected_tensors(checkpoint.config, config_path), config_path)
    activations = choose_activations(checkpoint, options)
    spec = build_model(checkpoint.config, checkpoint, activations=activations)
    limit = memory_limit(explicit=options.memory_limit_bytes)
    plan = plan_memory(
        spec,
        options,
        checkpoint_positions=Config(checkpoint.config).context_length(),
        available_bytes=limit.available_bytes,
        # An explicit limit is for all of this process, the others for what it still takes.
        resident_bytes=0 if limit.source == "explicit" else process_tree_memory().anonymous,
    )
    limits = step_limits(options, plan.max_model_len)
    kv = _native.KvCache(
        [layer.shape for layer in spec.kv_layers],
        [_native.KvGroup(g.window, g.num_blocks, g.layers) for g in plan.kv_groups],
        options.block_size,
        kv_type(options.kv_dtype),
    )
    pool = _native.ThreadPool(threads.threads, threads.cpus)
    program = spec.instantiate(pool, kv, isa, limits, batch_invariant=options.batch_invariant)
    return LoadedModel(
        checkpoint=checkpoint,
        options=options,
        spec=spec,
        plan=plan,
        limits=limits,
        isa=isa,
        activations=activations,
        threads=threads,
        kv=kv,
        runner=Runner(program, limits, options.block_size, len(plan.kv_groups)),
        load_seconds=time.perf_counter() - started,
    )
