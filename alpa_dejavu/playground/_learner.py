"""Gradients, updates and losses of a job, really computed, on flat vectors of parameters.

A gradient is computed when somebody first looks at it. Until then it waits with those of the other workers, and all
that wait are computed side by side. So any exchange has its gradients in batches, whatever its workers wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import final

import numpy as np

from alpa_dejavu.playground._arrays import Coordinates, Figures, Params, Rows, State, Vector, Vectors
from alpa_dejavu.playground._gradient import WorkerGradient, programs
from alpa_dejavu.playground._journal import Journal
from alpa_dejavu.playground._problem import drop_multipliers
from alpa_dejavu.playground.job import Job, Problem

_MOST = 256
"""Gradients that are computed side by side, at most: memory."""


class Learner:
    """A source of gradients, updates and losses; the base class is that of time alone, where vectors are empty.

    Attributes:
        shards: for each worker the samples that it draws from now; empty: all draw from all.
    """

    samples = 0

    def __init__(self, samples: Callable[[int], int]) -> None:
        self._samples, self.leaves, self.shards = samples, tuple[int, ...](), list[Rows]()

    def start(self, worker: int) -> Vector:
        """Returns the parameters that a worker begins with."""
        return np.zeros(0, np.float32)

    def state(self, params: Vector) -> State:
        """Returns a new optimizer's state."""
        return ()

    def batch(self, worker: int) -> Rows:
        """Returns the indices of the training samples in a worker's next batch."""
        return np.zeros(self._samples(worker), np.int64)

    def gradient(self, worker: int, step: int, version: int, at: Vector, rows: Rows | None = None,
                 left_out: Sequence[float] | None = None) -> WorkerGradient:  # fmt: skip
        """Returns a worker's gradient (`WorkerGradient`), computed later: on some samples; None: on its next batch.
        `left_out` has the shares of the problem's layers that it leaves out; None: none.
        """
        return WorkerGradient(self.compute, worker, step, version, at, self.batch(worker) if rows is None else rows)

    def compute(self, wanted: WorkerGradient) -> None:
        """Computes a gradient that is looked at, and others that wait."""
        wanted.computed = wanted.at

    def updated(self, params: Vector, state: State, gradient: Vector) -> tuple[Vector, State]:
        """Returns parameters and optimizer's state after an update."""
        return params, state

    def updated_each(self, params: Vector, state: State, rows: Rows) -> tuple[Vector, State]:
        """Returns both after an update by each of some samples, in their order; the optimizer must keep nothing."""
        return params, state

    def per_sample(self, params: Vector, rows: Rows) -> Vectors:
        """Returns the gradient of each of some samples."""
        return np.zeros((len(rows), 0), np.float32)

    def losses(self, params: Vector, rows: Rows) -> Figures:
        """Returns the loss of each of some samples."""
        return np.zeros(len(rows))

    def coordinates(self, rows: Rows) -> Coordinates | None:
        """Returns which parameters each of some samples' loss depends on; None: all."""
        return None

    def second_moment(self, state: State) -> Vector | None:
        """Returns the optimizer's tracker of the second moment; None if it has none."""
        return None

    def with_second_moment(self, state: State, values: Vector) -> State:
        """Returns the optimizer's state with another tracker of the second moment."""
        return state

    def moments(self, state: State) -> int:
        """Returns how many numbers the optimizer keeps for each parameter."""
        return 0

    def keeps(self, state: State) -> bool:
        """Returns whether the optimizer keeps anything between updates, such as moments, or a count of steps."""
        return False

    def score(self, params: Vector) -> tuple[float, float]:
        """Returns the held-out loss and accuracy of parameters; not a number where there is none."""
        return float("nan"), float("nan")


def batches(job: Job, seed: int, worker: int, shards: Sequence[Rows] | None = None) -> Iterator[Rows]:
    """Yields the indices of the samples of a worker's batches, drawn with replacement; without end.
    Shards, the samples of each worker, are looked at anew for each batch; empty: all have all; None: the job's.
    """
    assert job.problem is not None, "there are samples"
    shards = [np.asarray(rows, np.int64) for rows in job.settled_shards() or ()] if shards is None else shards
    generator = np.random.default_rng([seed, 1, worker])
    while True:
        shard = shards[worker] if shards else None
        drawn = generator.integers(len(job.problem.train[0]) if shard is None else len(shard), size=job.samples(worker))
        yield drawn if shard is None else shard[drawn]


@final
class JaxLearner(Learner):
    """A source of gradients and updates by JAX and optax."""

    def __init__(self, job: Job, problem: Problem, seed: int, journal: Journal, start: Vector | None = None) -> None:
        import jax

        self._job, self._seed, self._journal, self._problem, self._jax = job, seed, journal, problem, jax
        self.samples = len(problem.train[0])
        self._waiting: dict[WorkerGradient, None] = {}
        self._batches: dict[int, Iterator[Rows]] = {}
        self.shards = [np.asarray(shard, np.int64) for shard in job.settled_shards() or ()]
        self._programs = programs(problem, job.optimizer)
        self._tree = first = problem.init(jax.random.PRNGKey(seed))
        self._first, self.leaves = self._flat(first), tuple(int(np.size(leaf)) for leaf in jax.tree.leaves(first))
        if not np.isfinite(self._first).all():
            raise ValueError(f"problem {problem.name}: init has parameters that aren't finite, but must be; look at it")
        if start is not None:
            if start.shape != self._first.shape or job.own_starts:
                raise ValueError(f"start has the shape {start.shape}, but must have {self._first.shape}, and "
                                 "own_starts must be False; give one vector of the problem's parameters")  # fmt: skip
            self._first = start.astype(np.float32)

    def start(self, worker: int) -> Vector:
        if not self._job.own_starts:
            return self._first
        own = int(np.random.default_rng([self._seed, 0, worker]).integers(2**31))
        return self._flat(self._problem.init(self._jax.random.PRNGKey(own)))

    def state(self, params: Vector) -> State:
        return self._programs.state(params)

    def batch(self, worker: int) -> Rows:
        if worker not in self._batches:
            self._batches[worker] = batches(self._job, self._seed, worker, self.shards)
        return next(self._batches[worker])

    def gradient(self, worker: int, step: int, version: int, at: Vector, rows: Rows | None = None,
                 left_out: Sequence[float] | None = None) -> WorkerGradient:  # fmt: skip
        dropped = None if left_out is None else drop_multipliers(
            self._problem, self._tree, left_out, np.random.default_rng([self._seed, 7, worker, step])
        )  # fmt: skip
        gradient = WorkerGradient(self.compute, worker, step, version, at if dropped is None else at * dropped,
                        self.batch(worker) if rows is None else rows, dropped)  # fmt: skip
        if rows is None:
            self._waiting[gradient] = None
        return gradient

    def compute(self, wanted: WorkerGradient) -> None:
        # One on given samples doesn't wait with others: their number may differ.
        chosen, waited = [wanted], wanted in self._waiting
        self._waiting.pop(wanted, None)
        if waited and self._job.side_by_side:
            alike = [gradient for gradient in self._waiting if len(gradient.rows) == len(wanted.rows)]
            chosen += alike[: _MOST - 1]
            for gradient in chosen[1:]:
                del self._waiting[gradient]
        (computed,) = self._journal.next(lambda: (self._computed(chosen),))
        for gradient, values in zip(chosen, computed, strict=True):
            gradient.computed = values if gradient.multipliers is None else values * gradient.multipliers

    def _computed(self, chosen: Sequence[WorkerGradient]) -> Vectors:
        inputs, targets = self._problem.train
        if not self._job.side_by_side:
            at, rows = chosen[0].at, chosen[0].rows
            return np.asarray(self._programs.gradient(at, inputs[rows], targets[rows]))[None]
        # Few different sizes are few compilations.
        padded = [*chosen, *[chosen[-1]] * (2 ** (len(chosen) - 1).bit_length() - len(chosen))]
        rows = np.stack([gradient.rows for gradient in padded])
        points = np.stack([gradient.at for gradient in padded])
        computed = self._programs.gradients(points, inputs[rows], targets[rows])
        return np.asarray(computed)[: len(chosen)]

    def updated(self, params: Vector, state: State, gradient: Vector) -> tuple[Vector, State]:
        after, state = self._programs.update(params, state, gradient)
        return np.asarray(after), state

    def updated_each(self, params: Vector, state: State, rows: Rows) -> tuple[Vector, State]:
        if self.keeps(state):
            raise ValueError("job: optimizer keeps moments or counts steps, but must not where samples are applied one "
                             "by one; choose plain gradient descent")  # fmt: skip
        inputs, targets = self._problem.train

        def applied() -> tuple[Vector]:
            now = params
            for row in rows:
                gradient = self._programs.gradient(now, inputs[row : row + 1], targets[row : row + 1])
                now, _ = self._programs.update(now, state, gradient)
            return (np.asarray(now),)

        return self._journal.next(applied)[0], state

    def per_sample(self, params: Vector, rows: Rows) -> Vectors:
        inputs, targets = self._problem.train
        every = np.broadcast_to(params, (len(rows), len(params)))
        (gradients,) = self._journal.next(
            lambda: (np.asarray(self._programs.gradients(every, inputs[rows, None], targets[rows, None])),)
        )
        return np.asarray(gradients)

    def losses(self, params: Vector, rows: Rows) -> Figures:
        inputs, targets = self._problem.train
        (losses,) = self._journal.next(
            lambda: (np.asarray(self._programs.losses(params, inputs[rows], targets[rows]), np.float64),)
        )
        return losses

    def coordinates(self, rows: Rows) -> Coordinates | None:
        coordinates = self._problem.coordinates
        return None if coordinates is None else coordinates(self._problem.train[0][rows])

    def second_moment(self, state: State) -> Vector | None:
        adams = [node for node in self._jax.tree.leaves(state, is_leaf=_is_adam) if _is_adam(node)]
        return self._flat(adams[0].nu) if adams else None

    def with_second_moment(self, state: State, values: Vector) -> State:
        def changed(node: State) -> State:
            return node._replace(nu=self._programs.tree(values)) if _is_adam(node) else node

        return self._jax.tree.map(changed, state, is_leaf=_is_adam)

    def moments(self, state: State) -> int:
        return sum(leaf.size for leaf in self._jax.tree.leaves(state)) // self._first.size

    def keeps(self, state: State) -> bool:
        return bool(self._jax.tree.leaves(state))

    def score(self, params: Vector) -> tuple[float, float]:
        inputs, targets = self._problem.held_out
        (figures,) = self._journal.next(lambda: (np.array(self._programs.score(params, inputs, targets), np.float64),))
        return float(figures[0]), float(figures[1])

    def _flat(self, tree: Params) -> Vector:
        leaves = [np.ravel(np.asarray(leaf, np.float32)) for leaf in self._jax.tree.leaves(tree)]
        return np.concatenate(leaves)


def _is_adam(node: object) -> bool:
    import optax

    return isinstance(node, optax.ScaleByAdamState)
