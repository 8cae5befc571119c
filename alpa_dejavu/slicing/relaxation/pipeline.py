"""The simulated time of a step, and the recurrence's, as functions that JAX differentiates.

The step is that of 1F1B with blocking transfers, event for event: `alpa_dejavu.simulation.step` says the same of whole
plans.
It is a maximum of sums, so it is convex in the stages' seconds, and its gradient says which of them are waited for.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from alpa_dejavu.slicing.relaxation import Cost, RelaxedPlan

__all__ = ["many", "pipeline_s", "recurrence_s"]


def recurrence_s(plan: RelaxedPlan) -> Any:
    """Returns the seconds of a relaxed plan's step by Alpa's formula: all stages, plus B - 1 times the largest, for B
    micro-batches, plus all that comes once a step. JAX can differentiate it.
    """
    stage = plan.forward_s + plan.backward_s + plan.crossing_s
    return stage.sum() + (plan.num_micro_batches - 1) * stage.max() + plan.once_s.sum()


def pipeline_s(plan: RelaxedPlan, most_micro_batches: int) -> Any:
    """Returns the seconds of a 1F1B step of a relaxed plan. JAX can differentiate it.

    Transfers block both stages. There are at most `most_micro_batches` micro-batches. At the first ticks, one for each
    stage, there are only forwards, and transfers hold up one stage after the other. Later only pairs of neighbours
    meet: one of them goes back, the other ahead.

    References:
        Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021.
    """
    plan = RelaxedPlan(*map(jnp.asarray, plan))
    places = plan.forward_s.shape[0]
    last = jnp.zeros_like(plan.forward_s)
    last, _ = lax.scan(functools.partial(_filling, plan), last, jnp.arange(places))
    later = plan.num_stages + jnp.arange(places + 2 * most_micro_batches)
    last, _ = lax.scan(functools.partial(_turning, plan), last, later)
    return jnp.where(jnp.arange(places) < plan.num_stages, last + plan.once_s, 0.0).max()


def _filling(plan: RelaxedPlan, before: Any, tick: Any) -> tuple[Any, None]:
    """Simulates a tick at which stages only go forward."""
    stage = jnp.arange(before.shape[0])
    ahead = (stage <= tick) & (tick < plan.num_stages) & (tick - stage < plan.num_micro_batches)
    half = plan.crossing_s / 2
    blocked = ahead & (stage > 0) & (half > 0)

    def sent(last: Any, to: Any) -> tuple[Any, None]:
        source = jnp.maximum(to - 1, 0)
        met = jnp.maximum(last[source], last[to]) + half[to]
        both = last.at[source].set(met).at[to].set(met)
        return jnp.where(blocked[to], both, last), None

    last, _ = lax.scan(sent, before, stage)
    return _computed(last, _from_left(before), ahead, plan.forward_s), None


def _turning(plan: RelaxedPlan, before: Any, tick: Any) -> tuple[Any, None]:
    """Simulates a tick at which some stages go forward and their neighbours back."""
    stage, count, size = jnp.arange(before.shape[0]), plan.num_stages, plan.num_micro_batches
    batch = (tick - stage) // 2
    ahead = (stage < count) & ((tick - stage) % 2 == 0) & (batch >= count - stage) & (batch < size)
    turned = tick - (2 * count - 1 - stage)
    back = (stage < count) & (turned >= 0) & (turned % 2 == 0) & (turned // 2 < size)
    half = plan.crossing_s / 2
    # Of a stage and the one to its left.
    gets, gives = ahead & (stage > 0), jnp.roll(back, 1) & (stage > 0) & (stage < count)
    blocked = (gets | gives) & (half > 0)
    met = jnp.maximum(before, _from_left(before)) + half * (gets.astype(half.dtype) + gives.astype(half.dtype))
    last = jnp.where(blocked, met, before)
    last = jnp.where(jnp.roll(blocked, -1), jnp.roll(met, -1), last)
    last = _computed(last, _from_left(before), ahead, plan.forward_s)
    return _computed(last, _from_right(before, count), back, plan.backward_s), None


def _computed(last: Any, arrived: Any, doing: Any, seconds: Any) -> Any:
    """Returns when stages are free after computing, once they are free before and what they wait for has arrived.

    A stage that a transfer blocked up was blocked up until that had arrived, so it waits no longer.
    """
    return jnp.where(doing, jnp.maximum(last, arrived) + seconds, last)


def _from_left(times: Any) -> Any:
    return jnp.where(jnp.arange(times.shape[0]) > 0, jnp.roll(times, 1), 0.0)


def _from_right(times: Any, count: Any) -> Any:
    return jnp.where(jnp.arange(times.shape[0]) + 1 < count, jnp.roll(times, -1), 0.0)


@functools.partial(jax.jit, static_argnames=("cost",))
def many(cost: Cost, plans: RelaxedPlan) -> Any:
    """Returns the values of a cost, a function of a relaxed plan, for N relaxed plans at once; shape (N,)."""
    return jax.vmap(cost)(plans)
