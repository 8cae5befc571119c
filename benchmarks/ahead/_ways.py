"""Ways to take sequential steps with the gradients of several batches each, in one program for all numbers of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import optax

from ahead._problems import Problem
from alpa_dejavu.training.optex import optex
from alpa_dejavu.training.optex.evaluators import OneByOne

MEMORY = 5
"""Differences that Anderson acceleration keeps."""
DAMPED, LONGEST = 1e-2, 5.0
"""Its regularization, over the trace, and how long its move may be, over the optimizer's own."""
MOST = 8
"""Gradients of a step at most."""
Step = Callable[[Any, Any, Any], tuple[Any, Any, Any]]


class Numbers(NamedTuple):
    """The settings that a program is given when it runs.

    Attributes:
        rate: of learning.
        parallel: the gradients of a step, each of a batch of its own.
        trust: of optex.
    """

    rate: Any
    parallel: Any
    trust: Any


class Told(NamedTuple):
    """How a step went: points evaluated, and the mean error and cosine of their estimates."""

    walked: Any
    error: Any
    cosine: Any


@final
@dataclasses.dataclass(frozen=True)
class Program:
    """A program of a way to train.

    Attributes:
        kind: "plain", "batch", "repeat", "anderson" or "optex".
        settings: of optex.
    """

    kind: str
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def most(self) -> int:
        """Batches that a step takes at most."""
        return 1 if self.kind in ("plain", "anderson") else MOST

    def begun(self, problem: Problem, numbers: Numbers, params: Any) -> tuple[Any, Step]:
        """Returns the state of the beginning, and a step: parameters, state and batches [most, ...] to parameters,
        state and `Told`.
        """
        makers: Mapping[str, Callable[..., tuple[Any, Step]]] = {
            "plain": self._plain, "batch": self._batch, "repeat": self._repeat, "anderson": self._anderson,
            "optex": self._optex,
        }  # fmt: skip
        return makers[self.kind](problem, problem.optimizer(numbers.rate), params, numbers)

    def _plain(self, problem: Problem, inside: Any, params: Any, _: Numbers) -> tuple[Any, Step]:
        def step(params: Any, moments: Any, batches: Any) -> Any:
            gradient = jax.grad(problem.loss)(params, _row(batches, 0))
            return *_moved(inside, gradient, moments, params), _told(1)

        return inside.init(params), step

    def _batch(self, problem: Problem, inside: Any, params: Any, numbers: Numbers) -> tuple[Any, Step]:
        """One step by the mean of all gradients."""

        def step(params: Any, moments: Any, batches: Any) -> Any:
            def plus(place: Any, total: Any) -> Any:
                return total + jax.grad(problem.loss)(params, _row(batches, place))

            mean = jax.lax.fori_loop(0, numbers.parallel, plus, jnp.zeros_like(params)) / numbers.parallel
            return *_moved(inside, mean, moments, params), _told(numbers.parallel)

        return inside.init(params), step

    def _repeat(self, problem: Problem, inside: Any, params: Any, numbers: Numbers) -> tuple[Any, Step]:
        """Walks ahead on the last gradient, and applies the true ones as optex does."""

        def step(params: Any, state: Any, batches: Any) -> Any:
            moments, last = state

            def ahead(place: Any, carry: Any) -> Any:
                at, before, now, after, _ = carry
                gradient = jax.grad(problem.loss)(at, _row(batches, place))
                return *_moved(inside, last, before, at), *_moved(inside, gradient, after, now), gradient

            begun = (params, moments, params, moments, last)
            _, _, params, moments, last = jax.lax.fori_loop(0, numbers.parallel, ahead, begun)
            return params, (moments, last), _told(numbers.parallel)

        return (inside.init(params), jnp.zeros_like(params)), step

    def _anderson(self, problem: Problem, inside: Any, params: Any, _: Numbers) -> tuple[Any, Step]:
        """Anderson acceleration, type II, of the optimizer's step as a fixed-point map, with one gradient."""
        none = jnp.zeros((MEMORY, params.size))

        def step(params: Any, state: Any, batches: Any) -> Any:
            moments, moves, changes, before, count = state
            update, moments = inside.update(jax.grad(problem.loss)(params, _row(batches, 0)), moments, params)
            place = jnp.where(count > 0, (count - 1) % MEMORY, MEMORY)  # out of it: the first has no difference
            moves = moves.at[place].set(params - before[0], mode="drop")
            changes = changes.at[place].set(update - before[1], mode="drop")
            gram = changes @ changes.T
            gram = gram + (DAMPED * jnp.trace(gram) + 1e-30) * jnp.eye(MEMORY)
            move = update - (moves + changes).T @ jnp.linalg.solve(gram, changes @ update)
            # A move that is much longer than the update is what differences of noise make: the update is taken then.
            new = params + jnp.where(jnp.linalg.norm(move) <= LONGEST * jnp.linalg.norm(update), move, update)
            return new, (moments, moves, changes, (params, update), count + 1), _told(1)

        return (inside.init(params), none, none, (params, params * 0), jnp.int32(0)), step

    def _optex(self, problem: Problem, inside: Any, params: Any, numbers: Numbers) -> tuple[Any, Step]:
        side_by_side = optex(inside, MOST, **dict(self.settings))
        side_by_side = dataclasses.replace(side_by_side, trust=numbers.trust)
        evaluator = OneByOne(problem.loss)

        def step(params: Any, state: Any, batches: Any) -> Any:
            # A walk that is cut is the one of fewer points at most.
            walk = side_by_side.ask(params, state)
            walk = walk._replace(count=jnp.minimum(walk.count, numbers.parallel))
            found = evaluator.evaluate(walk.points, batches, walk.count)
            params, state, report = side_by_side.tell(params, state, walk, found)
            return params, state, Told(report.walked, jnp.nanmean(report.errors), jnp.nanmean(report.cosines))

        return side_by_side.init(params), step


def _moved(inside: optax.GradientTransformation, gradient: Any, moments: Any, params: Any) -> tuple[Any, Any]:
    updates, moments = inside.update(gradient, moments, params)
    return optax.apply_updates(params, updates), moments


def _told(walked: Any) -> Told:
    return Told(jnp.int32(walked), jnp.float32(jnp.nan), jnp.float32(jnp.nan))


def _row(tree: Any, place: Any) -> Any:
    return jax.tree_util.tree_map(lambda x: x[place], tree)
