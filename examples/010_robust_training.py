"""One of four replicas sends wrong gradients: training goes on, it is named, and planning says what its loss costs.

A small network trains in four replicas by suspicion weights. From step 20 on the gradients of replica 1 have the wrong
sign. `Suspects` names it, and after some time proposes to leave it out. Planning again without its devices (`replan
--without-replica 1`) says how much longer a step then takes.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu import plan_table
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.changed.kept import Kept
from alpa_dejavu.planning.changed.replanning import replan, replica_devices
from alpa_dejavu.training.robust import Suspects, robust_value_and_grad, rule
from demo.wide_model import WideModel

REPLICAS, WRONG, BEGIN, WIDTH = 4, 1, 20, 16
MACHINE = "g4dn.12xlarge"


def main() -> int:
    """Trains, and plans without who is proposed to be left out; returns 1 if that isn't the wrong one alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50, help="training steps (default: %(default)s)")
    parser.add_argument("--patience", type=int, default=15, help="steps until it is left out (default: %(default)s)")
    arguments = parser.parse_args()
    log = train(arguments.steps, arguments.patience)
    if log.left_out != (WRONG,):
        print(f"Replicas {', '.join(map(str, log.left_out))} are proposed to be left out, but {WRONG} is wrong")
        return 1
    cluster = named_cluster(MACHINE, 1)
    found = plan_model(WideModel(vocabulary=512, width=128, blocks=2, length=512), cluster, batch=96, layers=3)
    print(plan_table(found.plan))
    again = replan(found.plan, Kept.of(found), without_replicas=log.left_out)
    print(plan_table(again.plan))
    (device,) = replica_devices(found.plan, log.left_out)
    print(f"Without {device} a step takes {again.plan.step_s / found.plan.step_s:.2f} times as long")
    return 0


def train(steps: int, patience: int) -> Suspects:
    """Trains, with a wrong replica from some step on, and returns the log of suspects."""
    draw = np.random.default_rng(0)
    params = {"hidden": draw.standard_normal((WIDTH, WIDTH)) / 4, "out": draw.standard_normal((WIDTH, 1)) / 4}
    truth = draw.standard_normal((WIDTH, 1))
    gradient = robust_value_and_grad(_loss, rule("suspicion", wrong=1), REPLICAS, "whole")

    @jax.jit
    def step(params: Any, state: Any, batch: Any, signs: Any) -> Any:
        def tamper(each: Any) -> Any:
            return jax.tree_util.tree_map(lambda x: x * signs.reshape(-1, 1, 1), each)

        value, judged, state = gradient(params, batch, state, tamper=tamper)
        params = jax.tree_util.tree_map(lambda p, g: p - 0.05 * g, params, judged.gradients)
        return params, state, value, judged.suspicion, judged.agreement

    state, log = gradient.init(params), Suspects(REPLICAS, patience=patience)
    for number in range(steps):
        x = draw.standard_normal((64, WIDTH))
        batch = {"x": x, "y": np.tanh(x @ truth) + 0.1 * draw.standard_normal((64, 1))}
        signs = np.where((np.arange(REPLICAS) == WRONG) & (number >= BEGIN), -1.0, 1.0)
        params, state, value, suspicion, agreement = step(params, state, batch, signs)
        log = log.seen(suspicion, agreement)
        if number % 10 == 9:
            named = f"suspected: {', '.join(f'replica {one}' for one in log.named) or 'none'}"
            print(f"step {number + 1}: loss {float(value):.3f}, {named}")
    return log


def _loss(params: Any, batch: Any) -> Any:
    return jnp.mean((jnp.tanh(batch["x"] @ params["hidden"]) @ params["out"] - batch["y"]) ** 2)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    raise SystemExit(main())
