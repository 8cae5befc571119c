"""Trainings of a model: plain ones and such with larger batches, after races of starts, and by OptEx.

Each is an iterator over the losses of its steps, so that whoever reads them ends it. All share one compiled gradient of
a batch: a larger batch is several of these, and so are the points of a walk.
"""

from __future__ import annotations

import collections
import functools
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from alpa_dejavu.playground._arrays import Flat, Scalar
from alpa_dejavu.playground.spend._costs import HISTORY
from alpa_dejavu.playground.spend._trial_model import TrialModel
from alpa_dejavu.training.optex.evaluators import Evaluated, Evaluator

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

    from alpa_dejavu.training.optex import OptEx

    ValueAndGrad: TypeAlias = Callable[[Flat, PyTree], tuple[Scalar, Flat]]

WINDOW = 20
"""Losses are means over so many steps."""


@final
class Trainings:
    """Trainings of a model by Adam. Its parameters are one vector, for which programs are soon compiled."""

    def __init__(self, model: TrialModel) -> None:
        self._model, self._optimizer = model, optax.adam(1.0)
        self._unravel = ravel_pytree(model.init(jax.random.PRNGKey(0)))[1]
        self._gradient = jax.jit(jax.value_and_grad(lambda vector, batch: model.loss(self._unravel(vector), batch)))
        self._update = jax.jit(self._updated)
        self._raced = functools.cache(self._racing_step)  # all seeds of a rate share a program

    def batches(self, times: int, rate: float, seed: int) -> Iterator[float]:
        """Yields the loss of each step of a training, which takes so many of the model's batches at once."""
        vector = self._begun(seed)
        return self._trained(vector, self._optimizer.init(vector), times, rate, seed, 0)

    def race(self, starts: int, rate: float, seed: int, race_steps: int) -> Iterator[float]:
        """Yields the loss of each step of the start that is chosen and trained on: so many Sobol scales of first
        weights, a power of two, race by their last losses until after `race_steps`, or a few less, one is left.
        """
        from alpa_dejavu.training.initialization import parallel_initialize

        rounds = starts.bit_length() - 1
        rungs = [race_steps // 2 ** (rounds - 1) * 2**number for number in range(rounds)]
        result = parallel_initialize(
            self._start, self._raced(rate), lambda step: self._batch(seed, step), num_candidates=starts,
            budget_steps=rungs[-1], rungs=rungs, init="sobol", judge="last_loss", seed=seed, lanes=1,
        )  # fmt: skip
        yield from result.losses.tolist()
        vector, _ = ravel_pytree(result.state["params"])
        yield from self._trained(vector, result.state["moments"], 1, rate, seed, result.steps)

    def side_by_side(self, points: int, rate: float, seed: int) -> Iterator[float]:
        """Yields the loss where each step of OptEx begins."""
        walks, evaluator = _optex(points, rate), _CompiledOneByOne(self._gradient)
        vector = self._begun(seed)
        state = walks.init(vector)
        for step in itertools.count():
            of_points = [self._batch(seed, step * points + point) for point in range(points)]
            batches = jax.tree_util.tree_map(lambda *leaves: np.stack(leaves), *of_points)
            vector, state, report = walks.step(vector, state, evaluator, batches)
            yield float(report.loss)

    def _trained(
        self, vector: Flat, moments: PyTree, times: int, rate: float, seed: int, first: int
    ) -> Iterator[float]:
        for step in itertools.count(first):
            computed = [self._gradient(vector, self._batch(seed, step * times + number)) for number in range(times)]
            losses, gradients = zip(*computed, strict=True)
            vector, moments = self._update(vector, moments, sum(gradients) / times, rate)
            yield sum(map(float, losses)) / times

    def _begun(self, seed: int) -> Flat:
        return ravel_pytree(self._model.init(jax.random.fold_in(jax.random.PRNGKey(seed), 0)))[0]

    def _batch(self, seed: int, number: int) -> PyTree:
        places = np.random.default_rng([seed, number]).integers(self._model.num_rows, size=self._model.rows)
        return jax.tree_util.tree_map(lambda leaf: np.asarray(leaf)[places], self._model.data)

    def _updated(self, vector: Flat, moments: PyTree, gradient: Flat, rate: float | Scalar) -> tuple[Flat, PyTree]:
        step, moments = self._optimizer.update(gradient, moments)
        return optax.apply_updates(vector, rate * step), moments

    def _start(self, key: PRNGKeyArray) -> PyTree:
        """The state of a start that races. Its parameters are arrays as they were, as scales are theirs."""
        params = self._model.init(key)
        return {"params": params, "moments": self._optimizer.init(ravel_pytree(params)[0])}

    def _racing_step(self, rate: float) -> Callable[[PyTree, PyTree], tuple[PyTree, Scalar]]:
        def step(state: PyTree, batch: PyTree) -> tuple[PyTree, Scalar]:
            vector, _ = ravel_pytree(state["params"])
            loss, gradient = self._gradient(vector, batch)
            vector, moments = self._updated(vector, state["moments"], gradient, rate)
            return {"params": self._unravel(vector), "moments": moments}, loss

        return step


@final
class _CompiledOneByOne(Evaluator):
    """Gradients of points by a function that is compiled already."""

    def __init__(self, gradient: ValueAndGrad) -> None:
        self._gradient = gradient

    def evaluate(self, points: Float[Array, "N P"], batches: PyTree, count: Int[Array, ""]) -> Evaluated:
        """Returns the gradients of the points that matter; those of others are zeros, their losses NaN."""
        of_point = [jax.tree_util.tree_map(operator.itemgetter(n), batches) for n in range(int(count))]
        losses, gradients = zip(*map(self._gradient, points, of_point), strict=True)
        left = len(points) - len(of_point)
        return Evaluated(jnp.stack([*losses, *[jnp.nan] * left]), jnp.stack([*gradients, *[0 * points[0]] * left]))


def means(losses: Iterator[float]) -> Iterator[float]:
    """Yields the mean of each window of losses, from the first whole one on."""
    last = collections.deque[float](maxlen=WINDOW)
    for loss in losses:
        last.append(loss)
        if len(last) == WINDOW:
            yield sum(last) / WINDOW


def steps_to(losses: Iterator[float], target: float, most: int) -> int | None:
    """Returns after how many steps the mean loss is a target or less; None: it isn't after the most steps.

    >>> steps_to(iter([1.0] * 30 + [0.0] * 30), 0.5, 60)
    40
    """
    of_windows = enumerate(itertools.islice(means(losses), most - WINDOW + 1), WINDOW)
    return next((step for step, mean in of_windows if mean <= target), None)


@functools.lru_cache(maxsize=8)
def _optex(points: int, rate: float) -> OptEx:
    """The same programs for all seeds."""
    from alpa_dejavu.training.optex import optex

    return optex(optax.adam(rate), parallel=points, history=HISTORY)
