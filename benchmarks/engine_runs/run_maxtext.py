"""Trains by the file that is written for MaxText, on the devices of one process, and prints the losses."""

import json
import pathlib
import re
import sys
import zlib

import jax
import numpy as np
from flax import nnx
from maxtext.trainers.pre_train import train
from maxtext.utils import train_utils

FOLDER = pathlib.Path(sys.argv[1])
FACTS = json.loads((FOLDER / "run.json").read_text())
_STACKED = re.compile(r"decoder\.(pipeline_module\.)?layers\.(?:layers_(\d+)\.)?(.*)")


def begun(path, leaf):
    """Returns a matrix that follows from its name and its block, so that it begins alike however blocks are stacked."""
    name = ".".join(str(getattr(part, "key", getattr(part, "name", part))) for part in path).removesuffix(".value")
    if not name.startswith("model.") or not name.endswith(("kernel", "embedding")):
        return leaf
    stacked = _STACKED.search(name)
    if stacked is None:
        return jax.device_put(_matrix(name, leaf.shape), leaf.sharding)
    axis = 0 if stacked[1] else 1  # blocks of the same place in each stage, or all blocks
    shape = leaf.shape[:axis] + leaf.shape[axis + 1 :]
    step = FACTS["blocks"] // leaf.shape[axis]
    blocks = range(int(stacked[2] or 0), FACTS["blocks"], step)
    whole = np.stack([_matrix(f"{block} {stacked[3]}", shape) for block in blocks], axis)
    return jax.device_put(whole, leaf.sharding)


def _matrix(name, shape):
    return 0.05 * np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)


def main():
    """Trains, and prints the losses."""
    usual = train_utils.setup_train_loop

    def alike(*arguments, **more):
        *others, state = usual(*arguments, **more)
        nnx.update(state, jax.tree_util.tree_map_with_path(begun, nnx.state(state)))
        return *others, state

    train_utils.setup_train_loop = alike
    metrics = FOLDER / "metrics.jsonl"
    settings = {
        "steps": FACTS["steps"], "hardware": "cpu", "skip_jax_distributed_system": True, "enable_checkpointing": False,
        "base_output_directory": FOLDER / "out", "metrics_file": metrics, "learning_rate": 1e-2,
    }  # fmt: skip
    train.main(["train", str(FOLDER / "maxtext_plan.yml"), *(f"{name}={value}" for name, value in settings.items())])
    losses = [json.loads(line)["learning/loss"] for line in metrics.read_text().splitlines()]
    print("\nLOSSES", json.dumps(losses), flush=True)


if __name__ == "__main__":
    main()
