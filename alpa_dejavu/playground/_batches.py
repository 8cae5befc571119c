"""The samples of workers' batches, and random numbers that depend on a seed and a purpose alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from alpa_dejavu.playground.job import Job

__all__ = ["batches", "draws"]

Ints = NDArray[np.int64]


def draws(seed: int, *name: int) -> np.random.Generator:
    """Returns the generator of one purpose, given by numbers: it depends on nothing that others draw."""
    return np.random.default_rng([seed, *name])


def batches(job: Job, seed: int, worker: int, shards: Sequence[Ints] | None = None) -> Iterator[Ints]:
    """Yields the indices of the samples of a worker's batches, shape (batch,), drawn with replacement; without end.

    Args:
        job: the job.
        seed: of the draws.
        worker: the worker's number.
        shards: for each worker the samples that it has, looked at anew for each batch; empty: all have all; None: those
            of the job.
    """
    assert job.problem is not None, "there are samples"
    shards = [np.asarray(each, np.int64) for each in job.settled_shards() or ()] if shards is None else shards
    generator = draws(seed, 1, worker)
    while True:
        shard = shards[worker] if shards else None
        drawn = generator.integers(len(job.problem.train[0]) if shard is None else len(shard), size=job.samples(worker))
        yield drawn if shard is None else shard[drawn]
