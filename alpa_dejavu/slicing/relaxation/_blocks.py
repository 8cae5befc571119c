"""Whole blocks of a plan at once: all its choices for given cuts, or all its cuts for given choices.

Both are for a given bound on the largest stage, over which a second costs B - 1: so what is found costs no more than
it is said to, whatever the bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from alpa_dejavu.slicing.relaxation._batch import Batch, FloatArray, IntArray, firsts_of
from alpa_dejavu.slicing.relaxation._lattice import Lattice
from alpa_dejavu.slicing.relaxation._states import States
from alpa_dejavu.slicing.relaxation.put_stages import put_behind

MOST_STATES = 40_000_000
"""Choices aren't filled in where there would be more combinations of used devices, stages and choices."""


def filled(lattice: Lattice, ends: IntArray, count: IntArray, bounds: FloatArray) -> Batch | None:
    """Chooses submeshes and configs for N given cuts of the layers, so that the devices are taken and the cost is
    least.

    Args:
        lattice: the slicing problem, prepared for the relaxations.
        ends: shape (N, K), one past the last layer of each of up to K stages.
        count: shape (N,), the number of stages.
        bounds: shape (N,), a bound on the largest stage, in units of time; being over it is penalised.

    Returns:
        Plans, for those cuts for which there are any; None if there are too many combinations to look at.
    """
    states = States(lattice, kinds_only=True)
    if states.count * ends.size * len(states.uses) > MOST_STATES:
        return None
    least, way = _least_by_class(lattice, ends, count, bounds)
    (num, width), goal = ends.shape, states.goal()
    best = np.full((num, states.count), np.inf)
    best[:, 0] = 0.0
    taken = np.full((width, num, states.count), -1, dtype=np.int16)
    put_behind(least, count, states.holds(), states.back, best, taken)
    state = goal[best[:, goal].argmin(axis=1)]
    found = np.isfinite(best[np.arange(num), state])
    of_class = _traced(taken, state, count, states.back)
    ways = np.take_along_axis(way, of_class[:, :, None], axis=2)[:, :, 0]
    return lattice.of_ways(ends, of_class, ways, count).take(found)


def _least_by_class(
    lattice: Lattice, ends: IntArray, count: IntArray, bounds: FloatArray
) -> tuple[FloatArray, IntArray]:
    """Returns the least cost of each stage with each class, and the way that has it; shape (N, K, Q)."""
    last = lattice.problem.num_layers - 1
    followed = count[:, None] - 1 - np.arange(ends.shape[1])
    cost = theta(lattice, np.clip(firsts_of(ends), 0, last), np.clip(ends - 1, 0, last), followed, bounds[:, None])
    way = cost.argmin(axis=3)
    return np.take_along_axis(cost, way[..., None], axis=3)[..., 0], way


def theta(lattice: Lattice, firsts: IntArray, lasts: IntArray, followed: IntArray, bounds: FloatArray) -> FloatArray:
    """Returns what stages cost on each of Q classes of sites in each of P ways (submesh and config), plus a penalty for
    being over a bound, in units of time; the arguments' shape, followed by (Q, P).

    The transfer to a stage counts as on the mean. Infinite where so many stages can't follow.

    Args:
        lattice: the slicing problem, prepared for the relaxations.
        firsts: the stages' first layers.
        lasts: the stages' last layers.
        followed: how many stages follow each.
        bounds: bounds on the largest stage, in units of time.
    """
    choices, where = lattice.choices, (firsts, lasts)
    entry = choices.crossing_s.mean(axis=1)[firsts] / lattice.unit_s
    costs = choices.costs_s[where] / lattice.unit_s + entry[..., None]
    weights = _in_units(lattice, choices.weights[where], costs)
    cost = weights + entry[..., None] + _over(lattice, costs, bounds[..., None, None])
    return np.where(np.isfinite(costs) & (choices.room[where] >= followed[..., None, None]), cost, np.inf)


def _in_units(lattice: Lattice, weights: FloatArray, costs: FloatArray) -> FloatArray:
    """Returns weights in units; with the objective that counts stages, the least that the dearest of them costs."""
    if lattice.problem.objective == "inference":
        return np.where(np.isfinite(costs), lattice.reference, np.inf)
    return np.asarray(weights / lattice.unit_s)


def _over(lattice: Lattice, costs: FloatArray, bounds: FloatArray) -> FloatArray:
    """Returns the cost of being over a bound, in units; zero where a stage can't be."""
    over = np.where(np.isfinite(costs), np.maximum(costs - bounds, 0.0), 0.0)
    return np.asarray(lattice.arrays.steepness * over)


def _traced(taken: Any, state: IntArray, count: IntArray, offsets: IntArray) -> IntArray:
    """Returns the class of each stage, traced back from the last; shape (N, K)."""
    of_class = np.zeros((len(count), len(taken)), dtype=np.int64)
    rows = np.arange(len(count))
    for k in range(len(taken) - 1, -1, -1):
        picked = np.maximum(taken[k, rows, state], 0).astype(np.int64)
        there = k < count
        of_class[:, k] = np.where(there, picked, 0)
        state = np.where(there, np.maximum(state - offsets[picked], 0), state)
    return of_class


def recut(lattice: Lattice, batch: Batch, bounds: FloatArray) -> Batch:
    """Cuts the layers of plans anew where that costs least; submeshes stay as they are, configs are chosen with the
    cuts.

    Args:
        lattice: the slicing problem, prepared for the relaxations.
        batch: the N plans.
        bounds: shape (N,), a bound on the largest stage, in units of time; being over it is penalised.

    Returns:
        The plans with their new cuts and configs, without those for which there are no cuts.
    """
    size = lattice.problem.num_layers
    num, width = batch.ends.shape
    sums = np.full((num, size + 1), np.inf)
    sums[:, 0] = 0.0
    came = np.zeros((width, num, size + 1), dtype=np.int64)
    configs = []
    for k in range(width):
        least, config = _least_at(lattice, batch, k, bounds)
        configs.append(config)
        through = sums[:, :-1, None] + least
        picked = through.argmin(axis=1)
        there = (k < batch.count)[:, None]
        came[k, :, 1:] = picked
        new = np.concatenate([np.full((num, 1), np.inf), np.take_along_axis(through, picked[:, None], 1)[:, 0]], axis=1)
        sums = np.where(there, new, sums)
    ends, config = np.full((num, width), size), np.zeros((num, width), dtype=np.int64)
    rows, end = np.arange(num), np.full(num, size)
    for k in range(width - 1, -1, -1):
        there = k < batch.count
        first = came[k, rows, end]
        ends[:, k] = np.where(there, end, size)
        config[:, k] = np.where(there, configs[k][rows, first, np.maximum(end - 1, 0)], 0)
        end = np.where(there, first, end)
    found = np.isfinite(sums[:, size])
    return Batch(ends, batch.submesh, config, batch.count).take(found)


def _least_at(lattice: Lattice, batch: Batch, k: int, bounds: FloatArray) -> tuple[FloatArray, IntArray]:
    """Returns the least cost of stage k with its submesh from any layer to any other, and the config; (N, L, L)."""
    problem = lattice.problem
    submesh = batch.submesh[:, k]
    costs = np.moveaxis(problem.costs_s[:, :, submesh], 2, 0) / lattice.unit_s
    if problem.sites is not None and k:
        links = problem.sites.links[batch.submesh[:, k - 1], submesh]
        costs = costs + problem.sites.crossing_s.T[links][:, :, None, None] / lattice.unit_s
    weights = _in_units(lattice, costs * lattice.unit_s, costs)
    if problem.objective == "work":
        weights = weights * problem.num_micro_batches
    if problem.per_step_s is not None and problem.objective != "inference":
        weights = weights + np.moveaxis(problem.per_step_s[:, :, submesh], 2, 0) / lattice.unit_s
    theta = weights + _over(lattice, costs, bounds[:, None, None, None])
    forward = np.tri(problem.num_layers, dtype=np.bool_).T[None, :, :, None]
    fits = forward & np.isfinite(costs)
    if problem.max_n_succ_stages is not None:
        room = np.moveaxis(problem.max_n_succ_stages[:, :, submesh], 2, 0)
        fits &= room >= (batch.count - 1 - k)[:, None, None, None]
    theta = np.where(fits, theta, np.inf)
    config = theta.argmin(axis=3)
    return np.take_along_axis(theta, config[..., None], axis=3)[..., 0], config
