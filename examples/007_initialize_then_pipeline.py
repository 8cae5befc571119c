"""Chooses a start among several, then trains it on as a pipeline through Alpa, on a Ray cluster of CPU devices.

The race of candidates runs on Ray workers while Alpa plans and compiles the pipeline, whose devices have nothing to do
yet. The chosen state then goes onto the devices, sharded as the plan says; the first loss there is compared with that
of the same state on one device.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import alpa
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import ray
from flax.training.train_state import TrainState

from alpa_dejavu import DejavuStageOption, plan_table
from alpa_dejavu.alpa.into_alpa import placed, spare_workers
from alpa_dejavu.alpa.local_cluster import local_cluster
from alpa_dejavu.training.initialization import parallel_initialize
from digits.model import digits

TOLERANCE = 1e-4
DEVICES, LAYERS, MICRO_BATCHES = 2, 4, 4


class Network(nn.Module):
    """Dense layers, which a pipeline can cut between any two."""

    @nn.compact
    def __call__(self, images: Any) -> Any:
        """Logits, shape (B, 10), of images, shape (B, 8, 8, 1)."""
        x = images.reshape(images.shape[0], -1)
        for _ in range(LAYERS):
            x = nn.relu(nn.Dense(128)(x))
        return nn.Dense(10)(x)


def init_fn(key: Any) -> TrainState:
    """Fresh parameters, and SGD with momentum."""
    parameters = Network().init(key, jnp.zeros((1, 8, 8, 1)))["params"]
    return TrainState.create(apply_fn=Network().apply, params=parameters, tx=optax.sgd(0.02, momentum=0.9))


def make_step(value_and_grad: Callable[..., Any]) -> Callable[[TrainState, Any], tuple[TrainState, Any]]:
    """A training step by `jax.value_and_grad`, or by Alpa's, which marks where gradients are added up."""

    def train_step(state: TrainState, batch: Any) -> tuple[TrainState, Any]:
        def loss_fn(parameters: Any) -> Any:
            logits = state.apply_fn({"params": parameters}, batch[0])
            return -jnp.mean(jnp.sum(jax.nn.one_hot(batch[1], 10) * jax.nn.log_softmax(logits), axis=-1))

        loss, gradients = value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=gradients), loss

    return train_step


def main() -> None:
    """Races, trains and prints; an error if the pipeline doesn't go on from the chosen state."""
    arguments = _arguments()
    data = digits()
    total = arguments.race_steps + arguments.steps
    batches = data.batches(-(-total // len(data.batches(1))))
    with local_cluster(devices=DEVICES):
        alpa.init("ray")
        print(f"{arguments.candidates} candidates race on {arguments.workers} workers while Alpa compiles ...")
        started_s = time.perf_counter()
        race = ray.remote(num_cpus=1)(parallel_initialize).remote(
            init_fn, make_step(jax.value_and_grad), batches, num_candidates=arguments.candidates,
            budget_steps=arguments.race_steps, rungs=(arguments.race_steps // 2, arguments.race_steps), lanes=1,
            workers=arguments.workers,
        )  # fmt: skip
        # So small a network is better off in one stage; submeshes of one device make it a pipeline.
        option = DejavuStageOption(submesh_physical_shape_space="manual", manually_specified_submeshes=((1, 1),))
        method = alpa.PipeshardParallel(
            num_micro_batches=MICRO_BATCHES, layer_option=alpa.AutoLayerOption(2), stage_option=option
        )
        step = alpa.parallelize(make_step(alpa.value_and_grad), method=method)
        executable = step.get_executable(jax.eval_shape(init_fn, jax.random.PRNGKey(0)), batches[0])
        executable.sync()
        compiled_s = time.perf_counter() - started_s
        result = ray.get(race)
        print(f"Compiled after {compiled_s:.1f} s, raced after {time.perf_counter() - started_s:.1f} s")
        for curve in result.curves:
            print(f"    candidate {curve.number}: {len(curve.losses)} steps; {curve.why}")
        assert option.last_plan is not None, "the step is compiled"
        print(plan_table(option.last_plan))
        print(f"Devices that the plan leaves for more candidates: {len(spare_workers(option.last_plan))}")
        after = batches[result.steps : total]
        expected = float(jax.jit(make_step(jax.value_and_grad))(result.state, after[0])[1])
        state, losses = placed(result.state, executable), []
        for batch in after:
            state, loss = step(state, batch)
            losses.append(float(np.asarray(loss)))
        parameters = jax.tree_util.tree_map(np.asarray, state.params)
    difference = abs(losses[0] / expected - 1)
    print(f"First loss by Alpa {losses[0]:.6f}, on one device {expected:.6f}: relative difference {difference:.1e}")
    print(f"Loss after {total} steps {losses[-1]:.4f}; test accuracy {data.accuracy(parameters, Network()):.3f}")
    if difference > TOLERANCE:
        raise SystemExit(f"the pipeline doesn't go on from the chosen state: the difference is over {TOLERANCE:.0e}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=4, help="starts (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="Ray workers of the race (default: %(default)s)")
    parser.add_argument("--race-steps", type=int, default=40, help="of the best start (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="by Alpa, after the race (default: %(default)s)")
    arguments = parser.parse_args()
    for name, least in (("candidates", 1), ("workers", 1), ("race_steps", 8), ("steps", 1)):
        value = getattr(arguments, name)
        if value < least:
            parser.error(f"--{name.replace('_', '-')} is {value}, but must be at least {least}")
    return arguments


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main()
