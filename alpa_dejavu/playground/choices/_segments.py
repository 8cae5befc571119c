"""Short trainings by one option from given parameters, with the virtual seconds that they take."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground._batches import draws
from alpa_dejavu.playground._simulate import simulate
from alpa_dejavu.playground.choices._options import Option
from alpa_dejavu.playground.job import Job, Until
from alpa_dejavu.problem import Cluster

__all__ = ["Segment", "Segments", "planned_seconds"]

Vector = NDArray[np.float32]
_GRADIENTS = 64
"""Gradients of each worker by which an option's seconds are planned."""


def planned_seconds(option: Option, cluster: Cluster, num_bytes: float) -> float:
    """Returns the predicted seconds between two gradients that an option applies, of all workers together: by a
    simulation of time alone, of seconds as long as each worker takes for 64 gradients.

    Args:
        option: what is trained, and how.
        cluster: the hosts and their links.
        num_bytes: of the parameters.
    """
    job = dataclasses.replace(option.job, problem=None, num_bytes=num_bytes)
    whole = simulate(job, cluster, option.exchange, until=Until(steps=_GRADIENTS), looks=0)
    # Within fixed seconds, as those who are done first wait at the end of fixed steps.
    run = simulate(job, cluster, option.exchange, until=Until(seconds=whole.end_s), looks=0)
    return whole.end_s / int(run.steps[-1])


class Segment(NamedTuple):
    """A short training: the parameters that it came to, the gradients that it applied, its seconds, and the loss."""

    params: Vector
    gradients: int
    seconds: float
    loss: float


@final
class Segments:
    """Short trainings of options, on one cluster.

    Attributes:
        planned_s: for each option the predicted seconds of a gradient of all workers, shape (options,).
        meeting_s: the seconds of an all-reduce of the parameters.
        workers: how many there are.
    """

    def __init__(self, job: Job, cluster: Cluster, every: Sequence[Option], size: int, seed: int) -> None:
        self._cluster, self._every, self._seed = cluster, every, seed
        num_bytes = 4.0 * size if job.num_bytes is None else float(job.num_bytes)
        self.planned_s = np.array([planned_seconds(option, cluster, num_bytes) for option in every])
        alone = dataclasses.replace(job, problem=None, num_bytes=num_bytes, compute_s=0.0)
        self.meeting_s = simulate(alone, cluster, "all-reduce", until=Until(steps=1)).end_s
        self.workers = len(job.worker_hosts(cluster))

    def run(self, number: int, at: Vector, seconds: float, step: int) -> Segment:
        """Trains by an option for some seconds; where the workers then have unlike parameters, it has the seconds of
        an all-reduce in addition, which makes their mean.

        Args:
            number: the option's.
            at: the parameters that all workers begin with.
            seconds: virtual ones; what is under way at their end is lost.
            step: the step of the mix, for which samples and seconds are drawn anew.
        """
        option = self._every[number]
        drawn = int(draws(self._seed, 6, step, number).integers(2**31))
        run = simulate(option.job, self._cluster, option.exchange, until=Until(seconds=seconds), seed=drawn, start=at,
                       looks=0)  # fmt: skip
        apart = self.meeting_s if run.consensus[-1] > 0 else 0.0
        return Segment(run.params, int(run.steps[-1]), run.end_s + apart, float(run.loss[-1]))
