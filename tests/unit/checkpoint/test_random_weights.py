"""Random checkpoints: the right tensors, finite and centred weights, the same for one seed."""

from pathlib import Path

import numpy as np
import pytest
from checkpoint_samples import LLAMA, QWEN3, SPARK

from edge_infer.checkpoint import CheckpointError, dequantize, open_checkpoint
from edge_infer.checkpoint.architectures import expected_tensors
from edge_infer.checkpoint.random_weights import write_random_checkpoint


@pytest.mark.parametrize("form", ["symmetric", "min", "zero"])
@pytest.mark.parametrize("config", [LLAMA, QWEN3, SPARK])
def test_holds_every_tensor_with_centred_weights(
    tmp_path: Path, config: dict[str, object], form: str
) -> None:
    path = write_random_checkpoint(config, tmp_path / "m", form=form, head_format="int4")
    with open_checkpoint(path) as checkpoint:
        for item in expected_tensors(config, path).values():
            name = item.name.removesuffix(".weight")
            if len(item.shape) == 1:
                np.testing.assert_array_equal(checkpoint.array(item.name), 1)
                continue
            linear = checkpoint.linear(name)
            assert (linear.n, linear.k) == item.shape
            weights = dequantize(linear)
            assert 0.015 < weights.std() < 0.026
            assert abs(weights.mean()) < 0.004
            if linear.scales is not None and linear.n % 16:
                assert not linear.scales[-1, :, linear.n % 16 :].any()


def test_dense_checkpoint_and_seed(tmp_path: Path) -> None:
    paths = [
        write_random_checkpoint(
            QWEN3, tmp_path / name, seed=seed, linear_format="bf16", head_format="bf16"
        )
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    contents = [(path / "model.safetensors").read_bytes() for path in paths]
    assert contents[0] == contents[1] != contents[2]
    with open_checkpoint(paths[0]) as checkpoint:
        assert not checkpoint.modules
        assert checkpoint.linear("model.layers.0.mlp.up_proj").format == "bf16"


def test_unknown_choices_are_refused(tmp_path: Path) -> None:
    for choice in ({"head_format": "int2"}, {"form": "x"}, {"group_size": 48}):
        with pytest.raises(CheckpointError):
            write_random_checkpoint(LLAMA, tmp_path / "m", **choice)
    with pytest.raises(CheckpointError, match="architectures is"):
        write_random_checkpoint({**LLAMA, "architectures": ["Other"]}, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
