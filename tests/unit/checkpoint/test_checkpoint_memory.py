"""Converting a tensor of 320 MB needs less than 64 MiB of anonymous memory (CASES 5)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_samples import LLAMA

from edge_infer.checkpoint.architectures import expected_tensors
from edge_infer.checkpoint.writer import SafetensorsWriter

LIMIT_BYTES = 64 << 20
VOCAB, HIDDEN = 80_000, 1024

# RssAnon is what the kernel counts, sampled inside every piece; tracemalloc sees each numpy array.
CHILD = """
import json, os, sys, threading, time, tracemalloc
from pathlib import Path
os.sched_getaffinity = lambda pid: set(range(64))  # as many threads as it ever uses
from edge_infer.checkpoint.convert import convert
from edge_infer.checkpoint.plan import QuantizeOptions

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024

src, dst, options = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
convert(src / "small", dst / "warm")
start, peak, stop = anonymous(), 0, threading.Event()

def watch():
    global peak
    while not stop.is_set():
        peak = max(peak, anonymous())
        time.sleep(0.001)

thread = threading.Thread(target=watch)
thread.start()
tracemalloc.start()
convert(src / "large", dst / "out", QuantizeOptions(**options))
traced = tracemalloc.get_traced_memory()[1]
stop.set()
thread.join()
print(json.dumps({"anonymous": peak - start, "traced": traced}))
"""


def write_sparse(folder: Path, vocab: int, hidden: int) -> Path:
    """A model of f32 zeros that takes no space on the disk: its file is a hole."""
    config = {**LLAMA, "vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": 1}
    config["tie_word_embeddings"] = True
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: ("F32", item.shape) for name, item in expected_tensors(config, folder).items()}
    with SafetensorsWriter(folder / "model.safetensors", tensors) as writer:
        writer._written = {name: entry.nbytes for name, entry in writer.entries.items()}
        writer.finish()
    return folder


@pytest.mark.parametrize(
    "options", [{"head_format": "int8"}, {"head_format": "int4", "form": "min", "group_size": 32}]
)
def test_peak_anonymous_memory_is_bounded(tmp_path: Path, options: dict[str, object]) -> None:
    (tmp_path / "src").mkdir()
    write_sparse(tmp_path / "src" / "small", 64, 64)
    large = write_sparse(tmp_path / "src" / "large", VOCAB, HIDDEN)
    assert (large / "model.safetensors").stat().st_size > 4 * VOCAB * HIDDEN
    arguments = [str(tmp_path / "src"), str(tmp_path / "dst"), json.dumps(options)]
    run = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    figures = json.loads(run.stdout)
    # A piece of 2**19 float32 weights is 2 MiB: less would mean that nothing was measured.
    assert 2 << 20 < figures["traced"] < LIMIT_BYTES
    assert figures["anonymous"] < LIMIT_BYTES
