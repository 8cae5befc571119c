"""The conformance suite of splits; `alpa_dejavu.playground.testing` has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from alpa_dejavu.playground._split import Shards, Split, SplitTask

__all__ = ["check_split"]


def check_split(split: Split, *, samples: int = 240, workers: int = 6) -> None:
    """Checks that a split keeps its contract, with labels, several labels of a sample, and real values: each worker has
    samples, each sample is there as often as the split says, sizes are those of speeds within one sample where it has
    `by_speed`, synthetic samples have the form and the targets of real ones, and the same seed gives the same.

    Args:
        split: the split to check.
        samples: the number of samples.
        workers: the number of workers, on three hosts, with unlike speeds; a multiple of three.

    Raises:
        AssertionError: what is wrong.

    >>> from alpa_dejavu.playground.data import split
    >>> check_split(split("dirichlet", alpha=0.5))
    """
    draw = np.random.default_rng(5)
    inputs = draw.standard_normal((samples, 4, 3)).astype(np.float32)
    labels = draw.integers(5, size=samples)
    hosts, compute_s = tuple(n // (workers // 3) for n in range(workers)), tuple(1.0 + n for n in range(workers))
    for targets in (labels, draw.random((samples, 3)) < 0.5, inputs[:, 0, 0].astype(np.float64)):
        for seed in (0, 1):
            where = f"{split!r}, targets of {targets.dtype} with shape {targets.shape}, seed {seed}"
            task = SplitTask(inputs, targets, hosts, compute_s, seed)
            found, again = split.split(task), split.split(task)
            _check_shards(found, task, split, where)
            same = all(map(np.array_equal, found.rows, again.rows))
            same = same and _equal(found.made_inputs, again.made_inputs)
            assert same, f"{where}: made again, it is another"


def _check_shards(found: Shards, task: SplitTask, split: Split, where: str) -> None:
    lengths, total = [len(rows) for rows in found.rows], len(found.synthetic)
    assert len(lengths) == task.size, f"{where}: shares are for {len(lengths)} workers, but must be for {task.size}"
    assert min(lengths) > 0, f"{where}: worker {int(np.argmin(lengths))} has no sample"
    rows = np.concatenate(found.rows)
    assert (rows >= 0).all(), f"{where}: an index is below 0"
    assert (rows < total).all(), f"{where}: an index is {rows.max()}, but there are {total} samples"
    often = np.bincount(rows, minlength=total)
    assert split.uses == "at will" or often.max() <= 1, f"{where}: sample {int(often.argmax())} is there twice"
    assert split.uses != "exactly once" or often.min() == 1, f"{where}: sample {int(often.argmin())} isn't there"
    if getattr(split, "by_speed", False):
        exact = task.samples / np.array(task.compute_s) / (1 / np.array(task.compute_s)).sum()
        assert (np.abs(lengths - exact) < 1).all(), f"{where}: sizes are {lengths}, but must be {exact} within one"
    if found.made_inputs is not None:
        assert found.made_targets is not None, f"{where}: synthetic samples have no targets"
        for made, real in ((found.made_inputs, task.inputs), (found.made_targets, task.targets)):
            assert (made.shape[1:], made.dtype) == (real.shape[1:], real.dtype), f"{where}: synthetic ones are unlike"
        assert np.isin(found.made_targets, task.targets).all(), f"{where}: a synthetic target isn't there otherwise"


def _equal(one: Any, other: Any) -> bool:
    return (one is None) == (other is None) and (one is None or np.array_equal(one, other))
