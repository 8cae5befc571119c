"""Training that loses a host and goes on by itself: three Ray nodes on this machine stand for hosts, one is killed.

The plan says beforehand what is run without each of its hosts. When one is gone, `alpa_dejavu.alpa.resume` takes that
plan, restores the last distributed checkpoint into it, and trains on; its losses are those of an undisturbed run.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import threading
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import alpa
import jax
import numpy as np

from alpa_dejavu import DejavuStageOption, plan_table
from alpa_dejavu.alpa.local_cluster import local_cluster, lose_host
from alpa_dejavu.alpa.resume import AlpaSession, train
from demo.session import Session
from demo.text import batches, standard_library
from demo.training import Batch, Job, create_state, make_train_step, train_on_one_device

TOLERANCE = 1e-4


def main() -> None:
    """Trains, and kills a host on the way; exits with an error if the losses aren't those of an undisturbed run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="training steps (default: %(default)s)")
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints (default: %(default)s)")
    arguments = parser.parse_args()
    steps, killed_in = arguments.steps, arguments.steps // 2 + 2
    job = Job(micro_batches=4, batch_size=24)
    source = batches(standard_library(), job.batch_size, job.config.length, job.seed)
    data = [next(source) for _ in range(steps)]
    killing: list[threading.Timer] = []

    def batch(number: int) -> Batch:
        if number == killed_in and not killing:
            # A little later, so that it happens while the step is running.
            killing.append(threading.Timer(0.05, lose_host))
            killing[0].start()
        return data[number]

    with tempfile.TemporaryDirectory() as folder, local_cluster(devices=1, hosts=3):
        alpa.init("ray")
        option = DejavuStageOption(contingencies=True)
        print("Planning ...")
        Session(job, option).compile()
        alpa.shutdown()
        plan = option.last_plan
        assert plan is not None, "the session has compiled"
        print(plan_table(plan))
        print(f"If a host is lost: {plan.without_a_host}")
        print(f"Training; a host is killed in step {killed_in} ...")
        step = make_train_step(jax.value_and_grad)
        session = AlpaSession(step, lambda: create_state(job), batch, folder)
        trained = train(session, plan, steps, every=arguments.every)
    for recovery in trained.recoveries:
        print(
            f"Lost {', '.join(recovery.hosts)} in step {recovery.failed_step}, went on from step "
            f"{recovery.resumed_step}: {recovery.steps_lost} steps and {recovery.seconds:.1f} s lost "
            f"({recovery.noticed_s:.1f} s to notice, {recovery.started_s:.1f} s to compile and restore)"
        )
    expected: Any = train_on_one_device(create_state(job), data)[1]
    difference = float(np.max(np.abs(np.array(trained.losses) / np.array(expected) - 1)))
    print(f"Largest relative difference of a loss to an undisturbed run: {difference:.1e} (tolerance {TOLERANCE:.0e})")
    if difference > TOLERANCE or len(trained.recoveries) != 1:
        raise SystemExit("training didn't go on as if nothing had happened")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main()
