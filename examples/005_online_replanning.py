"""Search and training together: measured steps re-fit the costs, and the plan follows where that pays.

Two Ray nodes on this machine stand for hosts; each trains one stage of a pipeline, on a core of its own. The first plan
goes by a data sheet that knows matrix products and nothing else, but half of the blocks compute long rows of sines. So
the first stage is late, and measured steps say so: `alpa_dejavu.planning.online.Follower` re-fits what each layer
costs, the slicer looks again from there, and training moves to another plan as soon as the steps that are left save
more than moving takes. The losses are those of an undisturbed run.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import statistics
import tempfile
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu import plan_table
from alpa_dejavu.alpa.local_cluster import local_cluster
from alpa_dejavu.alpa.resume import AlpaSession
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.kept import Kept
from alpa_dejavu.planning.online import Follower
from alpa_dejavu.problem import Cluster, Device, Link

BLOCKS, SINES, SIZE = 8, (24, 24, 24, 24, 0, 0, 0, 0), 256
BATCH, MICRO_BATCHES = 512, 8
NOTED, WARM_UP = 3, 2
"""Of the steps between two looks so many are noted; after a start so many aren't measured."""
TOLERANCE = 1e-4
RATE = 1e-4


def state() -> list[np.ndarray]:
    """Fresh weights."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=(SIZE, SIZE)).astype(np.float32) / SIZE**0.5 for _ in range(BLOCKS)]


def batch(number: int) -> np.ndarray:
    """Of a step."""
    return np.random.default_rng(number).normal(size=(BATCH, SIZE)).astype(np.float32)


def step(weights: Any, x: Any) -> tuple[Any, Any]:
    """Learns to give back its input: a step of gradient descent, and the loss."""

    def loss(weights: Any) -> Any:
        made = x
        for weight, sines in zip(weights, SINES, strict=True):
            made = made + jnp.tanh(made @ weight)
            for _ in range(sines):
                made = made + 0.01 * jnp.sin(made)
        return ((made - x) ** 2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree_util.tree_map(lambda weight, gradient: weight - RATE * gradient, weights, gradients), value


def model(batch_size: int) -> Any:
    """As `plan_model` takes it."""
    shapes = [jax.ShapeDtypeStruct(weight.shape, weight.dtype) for weight in state()]
    return step, (shapes, jax.ShapeDtypeStruct((batch_size, SIZE), np.float32))


def data_sheet() -> Cluster:
    """Two hosts of one device each, for which all but matrix products is free; collectives between them are slow."""
    device = Device("data sheet", 2.0**31, {"float32": 3e10}, 1e15, 1e15, transcendental_flop=1.0)
    within, between = Link(1e-4, 1e10), Link(1e-3, 1e7, send_latency_s=1e-3, send_bytes_per_s=1e9)
    return Cluster.uniform("2 x data sheet", ["host-0", "host-1"], device, 1, within, between)


def main() -> None:
    """Trains, and moves where it pays; exits with an error if the losses aren't those of an undisturbed run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="training steps (default: %(default)s)")
    parser.add_argument("--every", type=int, default=10, help="steps from look to look (default: %(default)s)")
    parser.add_argument("--slicer", default="gradient", help="what looks for plans (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.every <= NOTED + WARM_UP:
        parser.error(f"--every is {arguments.every}; {NOTED + WARM_UP} of these steps aren't timed, so give more")
    planned = plan_model(
        model, data_sheet(), batch=BATCH, micro_batches=MICRO_BATCHES, layers=BLOCKS, remat=("none",), zero=(0,)
    )
    print(plan_table(planned.plan))
    with tempfile.TemporaryDirectory() as folder, local_cluster(devices=1, hosts=2):
        follower = Follower(planned.plan, Kept.of(planned), restart_s=0.0, slicing=arguments.slicer)
        losses, medians = train(AlpaSession(step, state, batch, folder), follower, arguments.steps, arguments.every)
    print("Median of a step by each plan: " + ", ".join(f"{seconds:.4f} s" for seconds in medians))
    expected = undisturbed(arguments.steps)
    difference = float(np.max(np.abs(np.array(losses) / np.array(expected) - 1)))
    print(f"Largest relative difference of a loss to an undisturbed run: {difference:.1e} (tolerance {TOLERANCE:.0e})")
    if difference > TOLERANCE:
        raise SystemExit("training isn't what an undisturbed run computes")


def train(session: AlpaSession, follower: Follower, steps: int, every: int) -> tuple[list[float], list[float]]:
    """The losses, and the median of a step by each plan that ran."""
    losses: list[float] = []
    seconds: list[list[float]] = [[]]
    stages_s: list[float] = []
    try:
        follower.restart_s = start(session, follower, None)
        print(f"The first start took {follower.restart_s:.1f} s; a move is taken to cost as much")
        since = 0
        for number in range(steps):
            began = time.perf_counter()
            if since % every >= every - NOTED:
                loss, notes = session.noted_step(number)
                stages_s = [stage.computing_s for stage in notes.stages]
                follower.measured(stages_s, statistics.median(seconds[-1][-every:]))
            else:
                loss = session.step(number)
                seconds[-1] += [time.perf_counter() - began] if since >= WARM_UP else []
            losses.append(loss)
            since += 1
            if since % every:
                continue
            decision = follower.decide(steps - number - 1)
            computed = " and ".join(f"{each:.3f} s" for each in stages_s)
            print(f"After step {number + 1}, stages having computed for {computed}: {decision}")
            if decision.worth:
                saved = time.perf_counter()
                session.save(number + 1)
                session.stop()
                follower.moved(decision)
                saved_s = time.perf_counter() - saved
                follower.restart_s = saved_s + start(session, follower, number + 1)
                print(f"Moved in {follower.restart_s:.1f} s to\n{plan_table(follower.plan)}")
                since = 0
                seconds.append([])
    finally:
        session.stop()
    return losses, [statistics.median(each) for each in seconds if each]


def start(session: AlpaSession, follower: Follower, checkpoint: int | None) -> float:
    """The plan that is followed; seconds that it took until it could run."""
    began = time.perf_counter()
    session.start(follower.plan, checkpoint)
    cores = itertools.cycle(sorted(os.sched_getaffinity(0)))
    # A core for each device: both hosts of a stage have both of its cores.
    session.pin([list(itertools.islice(cores, stage.submesh.num_devices)) for stage in follower.plan.stages])
    return time.perf_counter() - began


def undisturbed(steps: int) -> list[float]:
    """The losses of one device."""
    now, losses, alone = state(), [], jax.jit(step)
    for number in range(steps):
        now, loss = alone(now, batch(number))
        losses.append(float(loss))
    return losses


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main()
