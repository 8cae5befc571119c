"""A pipeline over two hosts: two Ray nodes on this machine stand for them, each runs one stage.

On few cores the best plan is often a single stage. Here submeshes of one host with two devices are the only ones to
choose from, so four devices on two hosts make two stages; DejavuStageOption still decides which layers go where.
"""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import alpa
from tqdm import tqdm

from alpa_dejavu import DejavuStageOption, plan_table
from alpa_dejavu.alpa.local_cluster import local_cluster
from demo.session import Session
from demo.text import batches, standard_library
from demo.training import Job, create_state, largest_relative_difference, train_on_one_device

TOLERANCE = 1e-4


def main() -> None:
    """Trains a few steps; exits with an error if they aren't what one device computes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5, help="training steps (default: %(default)s)")
    steps = parser.parse_args().steps
    job = Job()
    data = batches(standard_library(), job.batch_size, job.config.length, job.seed)
    with local_cluster(devices=2, hosts=2):
        alpa.init("ray")
        option = DejavuStageOption(submesh_physical_shape_space="manual", manually_specified_submeshes=[(1, 2)])
        session = Session(job, option)
        print("Planning and compiling ...")
        session.compile()
        assert option.last_plan is not None, "the session has compiled"
        print(plan_table(option.last_plan))
        for _ in tqdm(range(steps), desc="Training", unit="step", disable=None):
            session.step()
        parameters: Any = session.parameters()
        expected, expected_losses = train_on_one_device(create_state(job), [next(data) for _ in range(steps)])
    print("Losses on two hosts:  " + "  ".join(f"{loss:.6f}" for loss in session.losses))
    print("Losses on one device: " + "  ".join(f"{loss:.6f}" for loss in expected_losses))
    difference = largest_relative_difference(parameters, expected)
    print(f"Largest relative difference of a parameter tensor: {difference:.1e} (tolerance {TOLERANCE:.0e})")
    if difference > TOLERANCE:
        raise SystemExit("parallel training isn't what one device computes")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main()
