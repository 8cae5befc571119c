"""Trains digits with several steps side by side, next to the plain optimizer with the same batches.

Each sequential step walks ahead on gradients that a kernel estimates from the history, and has the true gradients of
all points of the walk computed side by side: here in one process, with --ray by a Ray worker each.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import optax

from alpa_dejavu.alpa.local_cluster import local_cluster
from alpa_dejavu.playground import problem
from alpa_dejavu.training.optex import StepReport, optex
from alpa_dejavu.training.optex.evaluators import Evaluator, OneByOne, RayWorkers

ROWS, RATE, TARGET = 32, 0.05, 0.3


def main() -> None:
    """Trains both, and prints how many sequential steps they take to the target."""
    arguments = _arguments()
    digits = problem("digits-mlp")
    inputs, labels = map(jnp.asarray, digits.train)
    held_out = tuple(map(jnp.asarray, digits.held_out))
    judged = jax.jit(digits.loss)

    def batches(step: int, parallel: int) -> Any:
        keys = [jax.random.fold_in(jax.random.PRNGKey(arguments.seed), step * parallel + n) for n in range(parallel)]
        rows = jnp.stack([jax.random.randint(key, (ROWS,), 0, len(inputs)) for key in keys])
        return inputs[rows], labels[rows]

    def steps(parallel: int, evaluator: Evaluator) -> int:
        side_by_side = optex(optax.sgd(RATE, momentum=0.9), parallel)
        params = digits.init(jax.random.PRNGKey(arguments.seed))
        state, report, start_s = side_by_side.init(params), None, time.perf_counter()
        for step in range(1, arguments.steps + 1):
            params, state, report = side_by_side.step(params, state, evaluator, batches(step, parallel))
            loss = float(judged(params, held_out))
            if loss <= TARGET:
                break
        assert isinstance(report, StepReport), "there is a step at least"
        taken_s = time.perf_counter() - start_s
        cosines = ", ".join(f"{float(cosine):.2f}" for cosine in report.cosines[:-1])
        print(f"N = {parallel}: {step} steps to a loss of {loss:.3f} in {taken_s:.1f} s"
              + f"; cosines of the last one's estimates: {cosines}" * bool(cosines))  # fmt: skip
        return step

    plain = steps(1, OneByOne(digits.loss))
    with contextlib.ExitStack() as stack:
        evaluator: Evaluator = OneByOne(digits.loss)
        if arguments.ray:
            stack.enter_context(local_cluster(devices=arguments.parallel))
            evaluator = stack.enter_context(RayWorkers(digits.loss, arguments.parallel))
        ahead = steps(arguments.parallel, evaluator)
    print(f"{plain / ahead:.1f} times fewer sequential steps, of at most {arguments.parallel}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parallel", type=int, default=4, help="points of a step (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="at most (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--ray", action="store_true", help="a Ray worker for each point")
    arguments = parser.parse_args()
    for name, least in (("parallel", 1), ("steps", 1)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name} is {getattr(arguments, name)}, but must be at least {least}")
    return arguments


if __name__ == "__main__":
    main()
