"""Conformance suites: run any exchange or topology, ours or your own, through them.

Each function raises AssertionError with what is wrong, and returns nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, final

import numpy as np

from alpa_dejavu.playground._data import DataMove, Epoch, Handed, Shards, Split, SplitTask
from alpa_dejavu.playground._simulate import simulate
from alpa_dejavu.playground._world import Exchange
from alpa_dejavu.playground.history import History
from alpa_dejavu.playground.job import Job, Problem, Until
from alpa_dejavu.playground.topology import Topology
from alpa_dejavu.problem import Cluster
from alpa_dejavu.testing import example_cluster

if TYPE_CHECKING:
    import optax

    from alpa_dejavu.playground._arrays import Batch, Flat, Scalar

__all__ = ["check_exchange", "check_move", "check_split", "check_topology"]

_STEPS, _MOVE_STEPS = 24, 60


def check_exchange(
    exchange: Exchange,
    *,
    workers: int = 4,
    most_staleness: int | None = None,
    keeps_mean: bool = False,
    drops: bool = False,
) -> None:
    """Checks that an exchange keeps its contract, with an even number of workers that take as long as each other, and
    at random: it ends, no gradient is counted twice or forgotten, the loss falls, and all is the same again.

    Args:
        most_staleness: no gradient may be applied when parameters are more versions newer; None: they may be.
        keeps_mean: whether it must keep the mean of parameters that differ from worker to worker, and bring them
            together, where gradients change nothing: as mixing does whose matrices are doubly stochastic, and push-sum.
        drops: whether it may drop gradients, or leave those of slow workers waiting at the end.

    >>> from alpa_dejavu.playground.exchanges import AsynchronousServer
    >>> check_exchange(AsynchronousServer())
    >>> check_exchange(AsynchronousServer(), most_staleness=0)
    Traceback (most recent call last):
    ...
    AssertionError: AsynchronousServer(server=0), spread 0.0: gradients were up to ... versions late
    """
    cluster, least = example_cluster(2, workers // 2), _line()
    for spread in (0.0, 0.7):
        where = f"{exchange!r}, spread {spread}"
        job = Job(least, 1e-3, 8, _plain(0.1), spread)
        run = simulate(job, cluster, exchange, until=Until(steps=_STEPS), seed=1, looks=4)
        _check_counts(run, job, workers, where, drops)
        assert run.loss[-1] < 0.5 * run.loss[0], f"{where}: the loss went from {run.loss[0]} to {run.loss[-1]} only"
        late = len(run.staleness) - 1
        assert most_staleness is None or late <= most_staleness, f"{where}: gradients were up to {late} versions late"
        again = simulate(job, cluster, exchange, until=Until(steps=_STEPS), seed=1, looks=4)
        assert again.same(run), f"{where}: run again, its history is another"
        alone = Job(None, 1e-3, 8, None, spread, num_bytes=4 * len(run.params))
        timed = simulate(alone, cluster, exchange, until=Until(steps=_STEPS), seed=1, looks=4)
        assert np.isclose(timed.end_s, run.end_s, rtol=1e-9), f"{where}: gradients change the time"
        if keeps_mean:
            _check_mean(exchange, dataclasses.replace(job, optimizer=_plain(0.0), own_starts=True), cluster, where)


def check_topology(topology: Topology) -> None:
    """Checks that a topology keeps its contract: nobody sends to itself, or twice; weights are above 0, and matrices
    doubly stochastic; what one worker has reaches all; the same round is the same again.
    """
    for size in (2, 3, 4, 7, 8, 16):
        spread = np.eye(size)
        for number in range(4 * size):
            mixing = topology.mixing(number, size, np.random.default_rng(number))
            again = topology.mixing(number, size, np.random.default_rng(number))
            where = f"{topology!r}, {size} workers, round {number}"
            pairs = list(zip(mixing.sources.tolist(), mixing.targets.tolist(), strict=True))
            assert len(set(pairs)) == len(pairs), f"{where}: somebody sends twice to the same worker"
            assert all(a != b for a, b in pairs), f"{where}: somebody sends to itself"
            matrix = mixing.matrix(size)
            assert (matrix >= 0).all(), f"{where}: a weight is below 0"
            assert np.allclose(matrix.sum(axis=1), 1), f"{where}: rows sum to {matrix.sum(axis=1)}, but must to 1"
            assert np.allclose(matrix.sum(axis=0), 1), f"{where}: columns sum to {matrix.sum(axis=0)}, but must to 1"
            assert (matrix == again.matrix(size)).all(), f"{where}: asked again, it is another"
            spread = matrix @ spread
        assert (spread > 0).all(), f"{topology!r}, {size} workers: what one has never reaches some other"


def check_move(move: DataMove, *, workers: int = 4) -> None:
    """Checks that a policy of moving samples keeps its contract, with an even number of workers that take as long as
    each other and at random, and where one is lost: each sample is at one worker at most, and at one where none is on
    its way or lost, links carry the bytes of what is moved and told, gradients are as many as without it, and all is
    the same again.

    >>> from alpa_dejavu.playground.data import move
    >>> check_move(move("by-loss"))
    """
    from alpa_dejavu.playground.fault import Crash

    cluster, rows = example_cluster(2, workers // 2), np.array_split(np.arange(len(_line().train[0])), workers)
    still = Job(_line(), 1e-3, 8, _plain(0.1), shards=[part.tolist() for part in rows])
    for spread, faults in ((0.0, []), (0.7, []), (0.7, [Crash(1, 0.02, 0.04)])):
        where = f"{move!r}, spread {spread}{', a worker lost' if faults else ''}"
        watched = _WatchedPolicy(move, where, [{*part.tolist()} for part in rows])
        job = dataclasses.replace(still, spread=spread)
        plain, moved, again = (
            simulate(tried, cluster, "async-server", until=Until(steps=_MOVE_STEPS), seed=1, looks=4, faults=faults)
            for tried in (job, dataclasses.replace(job, moves=watched), dataclasses.replace(job, moves=move))
        )
        assert moved.same(again), f"{where}: run again, its history is another"
        assert watched.epochs, f"{where}: it was never asked"
        if not faults:
            assert plain.worker_steps.tolist() == moved.worker_steps.tolist(), f"{where}: it changes who computes"
            least = watched.moved * job.bytes_of_a_sample()
            assert moved.num_bytes - plain.num_bytes >= least - 0.5, f"{where}: links carry less than is moved"


@functools.cache
def _plain(rate: float) -> optax.GradientTransformation:
    import optax

    return optax.sgd(rate)


@final
class _WatchedPolicy(DataMove):
    """A policy of which is noted which samples each worker has, as far as it is known."""

    def __init__(self, move: DataMove, where: str, owned: list[set[int]]) -> None:
        self._move, self._where, self._held, self.epochs, self.moved = move, where, owned, 0, 0

    def choose(self, epoch: Epoch) -> Handed:
        rows, handed = epoch.rows.tolist(), self._move.choose(epoch)
        handed_rows = handed.rows.tolist()
        elsewhere = {row for number, owned in enumerate(self._held) if number != epoch.worker for row in owned}
        assert len({*rows}) == len(rows), f"{self._where}: worker {epoch.worker} has a sample twice"
        assert not elsewhere & {*rows}, f"{self._where}: worker {epoch.worker} has samples that others have"
        assert {*handed_rows} < {*rows}, f"{self._where}: worker {epoch.worker} hands on others, or all"
        self._held[epoch.worker] = {*rows} - {*handed_rows}
        self.epochs, self.moved = self.epochs + 1, self.moved + len(handed_rows)
        return handed


@functools.cache
def _line() -> Problem:
    import jax
    import jax.numpy as jnp

    draw = np.random.default_rng(0)
    inputs = draw.standard_normal((256, 6)).astype(np.float32)
    targets = inputs @ np.arange(1, 7, dtype=np.float32)

    def loss(params: Flat, batch: Batch) -> Scalar:
        return 0.5 * jnp.mean(jnp.square(batch[0] @ params - batch[1]))

    data = inputs, targets
    return Problem("line", lambda key: jax.random.normal(key, (6,)), loss, None, data, data)


def _check_counts(run: History, job: Job, workers: int, where: str, drops: bool) -> None:
    assert run.end == "steps" or drops, f"{where}: it ended with {run.end!r}"
    assert (np.diff(run.time_s) >= 0).all(), f"{where}: time went back: {run.time_s}"
    computed = int(run.worker_steps.sum())
    counted = int(run.staleness.sum()) + run.lost_updates
    assert counted == run.steps[-1], f"{where}: {counted} gradients were applied or lost, but {run.steps[-1]} counted"
    assert counted == computed or (drops and counted < computed), f"{where}: {computed} gradients were computed, but "\
        f"{counted} applied or dropped"  # fmt: skip
    assert computed == workers * _STEPS or drops, f"{where}: {computed} gradients instead of {workers * _STEPS}"
    assert run.samples[-1] == computed * job.samples(0), f"{where}: {run.samples[-1]} samples"
    assert (run.idle_s > -1e-9 * run.end_s).all(), f"{where}: workers were idle for {run.idle_s}"
    assert (run.links >= 0).all(), f"{where}: links are {run.links}"
    assert not run.staleness.size or run.staleness.min() >= 0, f"{where}: staleness counts are {run.staleness}"


def _check_mean(exchange: Exchange, job: Job, cluster: Cluster, where: str) -> None:
    short, long = (simulate(job, cluster, exchange, until=Until(steps=steps), seed=1, looks=0) for steps in (1, 60))
    assert long.consensus[-1] < 0.05 * long.consensus[0], f"{where}: workers stay {long.consensus[-1]} apart"
    still = dataclasses.replace(job, compute_s=1.0)
    first = simulate(still, cluster, "all-reduce", until=Until(seconds=0.5), seed=1, looks=0).params
    apart = np.abs(long.params - first).max()
    assert apart < 1e-5, f"{where}: the mean of all parameters moved by {apart}"
    assert short.consensus[0] > 0, f"{where}: all began at the same parameters"


def check_split(split: Split, *, samples: int = 240, workers: int = 6) -> None:
    """Checks that a split keeps its contract, with labels, several labels of a sample, and real values: each worker, of
    a multiple of three, has samples, each sample is there as often as the split says, sizes are those of speeds within
    one sample where it has `by_speed`, and the same seed gives the same.

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
            shards, again = split.split(task), split.split(task)
            _check_shards(shards, task, split, where)
            assert all(map(np.array_equal, shards.rows, again.rows)), f"{where}: made again, it is another"


def _check_shards(shards: Shards, task: SplitTask, split: Split, where: str) -> None:
    lengths, total = [len(rows) for rows in shards.rows], task.samples
    assert len(lengths) == task.size, f"{where}: shares are for {len(lengths)} workers, but must be for {task.size}"
    assert min(lengths) > 0, f"{where}: worker {int(np.argmin(lengths))} has no sample"
    rows = np.concatenate(shards.rows)
    assert (rows >= 0).all(), f"{where}: an index is below 0"
    assert (rows < total).all(), f"{where}: an index is {rows.max()}, but there are {total} samples"
    often = np.bincount(rows, minlength=total)
    assert split.uses == "at will" or often.max() <= 1, f"{where}: sample {int(often.argmax())} is there twice"
    assert split.uses != "exactly once" or often.min() == 1, f"{where}: sample {int(often.argmin())} isn't there"
    if getattr(split, "by_speed", False):
        exact = task.samples / np.array(task.compute_s) / (1 / np.array(task.compute_s)).sum()
        assert (np.abs(lengths - exact) < 1).all(), f"{where}: sizes are {lengths}, but must be {exact} within one"
