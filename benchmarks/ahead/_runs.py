"""Runs until a target: how many sequential steps, gradients and seconds a way takes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ahead._problems import Problem
from ahead._ways import Numbers, Program

WINDOW = 3
"""A loss is the mean of those after so many steps."""
PART = 0.6
"""The target is the loss after that part of the plain optimizer's steps."""
FIRST = 0.15
"""The loss is told after that part of the plain optimizer's steps, too."""


@functools.cache
def compiled(problem: Problem, program: Program) -> Callable[..., Any]:
    """Returns a compiled training: key, `Numbers` and target to losses [steps], steps, gradients, and the mean error
    and cosine of the estimates. It ends at the target, but not before `FIRST`.
    """

    def run(key: Any, numbers: Numbers, target: Any) -> Any:
        params = problem.init(jax.random.fold_in(key, 0))
        state, step = program.begun(problem, numbers, params)
        drawn = jax.random.fold_in(key, 1)

        def batches(number: Any) -> Any:
            # In the order in which the plain optimizer sees them.
            places = number * numbers.parallel + jnp.arange(program.most)
            return jax.vmap(lambda place: problem.batch(jax.random.fold_in(drawn, place)))(places)

        def goes_on(carry: Any) -> Any:
            number, _, _, losses, *_ = carry
            last = jnp.mean(jax.lax.dynamic_slice(losses, (number,), (WINDOW,)))
            return (number < problem.steps) & (~(last <= target) | (number < round(FIRST * problem.steps)))

        def body(carry: Any) -> Any:
            number, params, state, losses, gradients, sums, counts = carry
            params, state, told = step(params, state, batches(number))
            loss = problem.judged(params, jax.random.fold_in(jax.random.fold_in(key, 2), number))
            each = jnp.stack([told.error, told.cosine])
            is_known = jnp.isfinite(each)
            return (number + 1, params, state, losses.at[number + WINDOW].set(loss), gradients + told.walked,
                    sums + jnp.where(is_known, each, 0), counts + is_known)  # fmt: skip

        losses = jnp.full(problem.steps + WINDOW, jnp.inf)
        begun = (jnp.int32(0), params, state, losses, jnp.int32(0), jnp.zeros(2), jnp.zeros(2))
        number, _, _, losses, gradients, sums, counts = jax.lax.while_loop(goes_on, body, begun)
        return losses[WINDOW:], number, gradients, sums / counts

    shapes = jax.random.PRNGKey(0), Numbers(jnp.float32(1), jnp.int32(1), jnp.float32(1)), jnp.float32(0)
    return jax.jit(run).lower(*shapes).compile()


def trained(problem: Problem, program: Program, seed: int, target: float, rate: float = 1.0, parallel: int = 1,
            trust: float = np.inf) -> dict[str, Any]:  # fmt: skip
    """Returns a run: its steps to the target (None: it isn't reached), gradients and seconds.

    Args:
        problem: what is trained.
        program: by what.
        seed: of all that is drawn.
        target: the loss at which it ends.
        rate: of learning, over the problem's.
        parallel: gradients of a step.
        trust: of optex.
    """
    numbers = Numbers(jnp.float32(rate * problem.rate), jnp.int32(parallel), jnp.float32(trust))
    call = compiled(problem, program)
    start_s = time.perf_counter()
    losses, steps, gradients, (error, cosine) = jax.device_get(
        call(jax.random.PRNGKey(seed), numbers, jnp.float32(target))
    )
    seconds = time.perf_counter() - start_s
    losses = np.asarray(losses[:steps], np.float64)
    reached = np.flatnonzero(means(losses) <= target)
    return {"seed": seed, "losses": losses.round(5).tolist(), "gradients": int(gradients), "steps": int(steps),
            "reached": int(reached[0]) + WINDOW if len(reached) else None, "seconds": seconds,
            "error": _number(error), "cosine": _number(cosine)}  # fmt: skip


def means(losses: Any) -> Any:
    """Returns the means of `WINDOW` losses, from the first ones on."""
    return np.convolve(losses, np.ones(WINDOW) / WINDOW, "valid")


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
