"""Trainings of a learner: plain ones and such with larger batches, races of starts, and OptEx."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, final

import jax
import numpy as np
import optax
from numpy.typing import NDArray

from alpa_dejavu.playground.spend._learner import Learner
from alpa_dejavu.playground.spend._ways import HISTORY

__all__ = ["WINDOW", "Runs", "steps_to"]

Floats = NDArray[np.float64]
WINDOW = 20
"""Losses are means over so many steps."""
_CHUNK = 30
"""Trainings may end after each so many steps."""


@final
class Runs:
    """Trainings of a learner by Adam; seeds are side by side, and batches of all sizes share a program."""

    def __init__(self, learner: Learner) -> None:
        self._learner, self._optimizer = learner, optax.adam(1.0)
        self._begun, self._go_on = jax.jit(jax.vmap(self._start)), jax.jit(
            jax.vmap(self._steps, in_axes=(None, None, None, None, 0, 0))
        )  # fmt: skip

    def batches(self, times: int, rate: float, seeds: Sequence[int], steps: int, target: float | None = None) -> Floats:
        """Returns the loss of each step of each seed's training, shape (seeds, steps); they end when all have come to a
        target.

        Args:
            times: how many of the learner's batches a step takes.
            rate: Adam's.
            seeds: of first weights and of batches.
            steps: at most.
            target: the loss; None: all steps are taken.
        """
        keys = jax.vmap(jax.random.PRNGKey)(np.array(seeds))
        carry, losses = self._begun(keys), np.zeros((len(seeds), 0))
        while losses.shape[1] < steps and (target is None or None in steps_to(losses, target)):
            carry, told = self._go_on(self._learner.data, rate, times, losses.shape[1], carry, keys)
            losses = np.concatenate([losses, np.asarray(told, np.float64)], axis=1)
        return losses[:, :steps]

    def race(self, starts: int, rate: float, seed: int, steps: int) -> Floats:
        """Returns the losses of the start that is chosen and trained on, in a race of Sobol scales by the last loss."""
        from alpa_dejavu.training.initialization import parallel_initialize

        init_fn, train_step = _raced(self._learner, rate)
        result = parallel_initialize(
            init_fn, train_step, lambda step: self._batch(seed, step), num_candidates=starts, budget_steps=steps,
            init="sobol", judge="last_loss", seed=seed, lanes=2, average=False,
        )  # fmt: skip
        return result.losses

    def side_by_side(self, points: int, rate: float, seeds: Sequence[int], steps: int, target: float) -> Floats:
        """Returns the loss where each step of OptEx begins, shape (seeds, steps); NaN after a training came to the
        target.
        """
        from alpa_dejavu.training.optex import optex
        from alpa_dejavu.training.optex.evaluators import Vmapped

        made = optex(optax.adam(rate), parallel=points, history=HISTORY)
        evaluator = Vmapped(self._learner.loss)
        losses = np.full((len(seeds), steps), np.nan)
        for row, seed in zip(losses, seeds, strict=True):
            params = self._learner.init(jax.random.fold_in(jax.random.PRNGKey(seed), 0))
            state = made.init(params)
            for step in range(steps):
                each = [self._batch(seed, step * points + point) for point in range(points)]
                batches = jax.tree_util.tree_map(lambda *leaves: np.stack(leaves), *each)
                params, state, report = made.step(params, state, evaluator, batches)
                row[step] = float(report.loss)
                if steps_to(row[None, : step + 1], target) != [None]:
                    break
        return losses

    def _batch(self, seed: int, step: int) -> Any:
        places = np.random.default_rng([seed, step]).integers(self._learner.num_rows, size=self._learner.rows)
        return jax.tree_util.tree_map(lambda leaf: np.asarray(leaf)[places], self._learner.data)

    def _start(self, key: Any) -> Any:
        params = self._learner.init(jax.random.fold_in(key, 0))
        return params, self._optimizer.init(params)

    def _steps(self, data: Any, rate: Any, times: Any, first: Any, carry: Any, key: Any) -> Any:
        """Some steps, each with the mean gradient of so many batches."""
        learner = self._learner

        def gradient(params: Any, key: Any) -> Any:
            def added(number: Any, sums: Any) -> Any:
                places = jax.random.randint(jax.random.fold_in(key, number), (learner.rows,), 0, learner.num_rows)
                batch = jax.tree_util.tree_map(lambda leaf: jax.numpy.asarray(leaf)[places], data)
                one = jax.value_and_grad(learner.loss)(params, batch)
                return jax.tree_util.tree_map(lambda total, part: total + part / times, sums, one)

            nothing = jax.tree_util.tree_map(jax.numpy.zeros_like, params)
            return jax.lax.fori_loop(0, times, added, (jax.numpy.float32(0), nothing))

        def step(carry: Any, number: Any) -> Any:
            params, moments = carry
            loss, mean = gradient(params, jax.random.fold_in(key, number + 1))
            updates, moments = self._optimizer.update(mean, moments)
            updates = jax.tree_util.tree_map(lambda one: rate * one, updates)
            return (optax.apply_updates(params, updates), moments), loss

        return jax.lax.scan(step, carry, first + jax.numpy.arange(_CHUNK))


def smoothed(losses: Floats) -> Floats:
    """Returns the means of losses over windows, the first of which ends at step `WINDOW`."""
    return np.lib.stride_tricks.sliding_window_view(losses, WINDOW).mean(axis=-1)


def steps_to(losses: Floats, target: float) -> list[int | None]:
    """Returns after how many steps each training's mean loss is a target or less; None: it isn't.

    Args:
        losses: shape (trainings, steps).
        target: the loss.
    """
    if losses.shape[1] < WINDOW:
        return [None] * len(losses)
    places = [np.flatnonzero(smoothed(each) <= target) for each in losses]
    return [int(each[0]) + WINDOW if each.size else None for each in places]


@functools.lru_cache(maxsize=4)
def _raced(learner: Learner, rate: float) -> tuple[Any, Any]:
    """The same functions for all races of a learner, so that they are compiled once."""
    optimizer = optax.adam(rate)

    def init_fn(key: Any) -> Any:
        params = learner.init(key)
        return {"params": params, "moments": optimizer.init(params)}

    def train_step(state: Any, batch: Any) -> tuple[Any, Any]:
        loss, gradient = jax.value_and_grad(learner.loss)(state["params"], batch)
        updates, moments = optimizer.update(gradient, state["moments"])
        return {"params": optax.apply_updates(state["params"], updates), "moments": moments}, loss

    return init_fn, train_step
