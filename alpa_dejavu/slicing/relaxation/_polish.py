"""Local steps from plans to better ones: blocks of choices and of cuts, then single moves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from alpa_dejavu.slicing.relaxation import _blocks
from alpa_dejavu.slicing.relaxation._batch import Batch, FloatArray, IntArray, Table
from alpa_dejavu.slicing.relaxation._lattice import Lattice
from alpa_dejavu.slicing.relaxation._moves import neighbours
from alpa_dejavu.slicing.relaxation._recombine import recombined

Measure = Callable[[Batch], FloatArray]
"""A function from plans to their costs; shape (N,), infinite where one isn't allowed."""
BELOW = (1.0 - 1e-9, 0.95)
"""Bounds that are tried on the largest stage, next to what it is."""
MOST_ROUNDS = 6
AROUND = (-0.06, -0.035, -0.015, 0.0, 0.015)
"""Bounds that are tried around the largest stage, by their logarithms."""
BOUND_ROUNDS, WORK = 4, 3e7
"""The rounds of `by_bounds`, which ends earlier once so many combinations were looked at."""
POOL, FAR = 64, 1.1
"""So many plans are kept, and moved from if they cost less than so many times the best."""


def by_blocks(lattice: Lattice, table: Table, plans: Batch) -> Batch:
    """Improves plans (cuts of layers into stages) by choosing all cuts anew, or all submeshes and configs, as long as
    they get better; for objectives that have a name.

    Args:
        lattice: the slicing problem, prepared for the relaxations.
        table: the problem's arrays, which give the costs of plans.
        plans: the plans to begin with; the result has at most as many.
    """
    totals = table.totals_s(plans)
    for _ in range(MOST_ROUNDS):
        costs = table.largest_s(plans) / lattice.unit_s
        again = plans.take(np.tile(np.arange(len(plans)), len(BELOW)))
        bounds = np.concatenate([costs * factor for factor in BELOW])
        found = [plans, _blocks.recut(lattice, again, bounds)]
        choices = _blocks.filled(lattice, again.ends, again.count, bounds)
        if choices is not None and len(choices):
            found.append(choices)
        everything = Batch.joined([each for each in found if len(each)]).distinct()
        new = table.totals_s(everything)
        order = np.argsort(new, kind="stable")[: len(plans)]
        plans, before, totals = everything.take(order), totals, new[order]
        if len(before) == len(totals) and totals.sum() >= before.sum() * (1 - 1e-12):
            break
    return plans


def by_bounds(lattice: Lattice, table: Table, plans: Batch, segments: IntArray) -> Batch:
    """Improves plans by recombining segments of layers, as stages, into the cheapest plans for bounds around their
    largest stages; for objectives that have a name.

    Args:
        lattice: the slicing problem, prepared for the relaxations.
        table: the problem's arrays, which give the costs of plans.
        plans: the plans to begin with, best first; the result has at most as many.
        segments: shape (E, 2), first and last layer of segments that are tried, besides those of the plans.
    """
    tried: set[float] = set()
    work = WORK
    for _ in range(BOUND_ROUNDS):
        largest = table.largest_s(plans)[:2] / lattice.unit_s
        around = np.log(np.maximum(largest[:, None], np.finfo(float).tiny)) + np.array(AROUND)
        bounds = [bound for bound in np.unique(np.round(around, 3)).tolist() if bound not in tried]
        if not bounds:
            break
        tried |= set(bounds)
        known = np.unique(np.concatenate([segments, _nearly(plans, lattice.problem.num_layers)]), axis=0)
        work -= len(known) * len(bounds) * len(lattice.choices.group) * float(np.prod(lattice.choices.available + 1.0))
        found = recombined(lattice, known, np.exp(bounds))
        if found is None or not len(found):
            break
        joined = Batch.joined([plans, found]).distinct()
        order = np.argsort(table.totals_s(joined), kind="stable")[: len(plans)]
        plans = joined.take(order)
        if work < 0:
            break
    return plans


def _nearly(plans: Batch, size: int) -> IntArray:
    """Returns the segments of plans, and those whose cuts are one layer off; shape (E, 2)."""
    own = np.column_stack([plans.firsts[plans.there], plans.ends[plans.there]])
    near = own[:, None] + np.array([(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1)])
    cuts = np.where((own == 0)[:, None] | (own == size)[:, None], own[:, None], near).reshape(-1, 2)
    cuts = cuts[(cuts[:, 0] < cuts[:, 1]) & (cuts[:, 0] >= 0) & (cuts[:, 1] <= size)]
    return np.unique(np.column_stack([cuts[:, 0], cuts[:, 1] - 1]), axis=0)


def by_moves(table: Table, measure: Measure, plans: Batch, rounds: int, together: int) -> Batch:
    """Improves plans by a best-first search: moves are made from the best plans met that none were made from yet.

    Args:
        table: the arrays of the slicing problem.
        measure: a function that gives the costs of plans, which are to be least.
        plans: the plans to begin with.
        rounds: how many rounds of moves are made at most.
        together: how many plans moves are made from in a round; if one, the search ends where no move makes it better.

    Returns:
        The best plans met, best first.
    """
    pool, moved = plans.distinct(), set[bytes]()
    totals = measure(pool)
    for n in range(rounds):
        order = np.argsort(totals, kind="stable")[:POOL]
        pool, totals = pool.take(order), totals[order]
        # First from the best of each number of stages: there may be no way from one to another downhill.
        near = np.arange(len(pool))
        if n == 0 and together > 1:
            near = pool.counts_met
        fresh = [m for m in near.tolist() if totals[m] <= totals[0] * FAR and pool.key(m) not in moved]
        fresh = fresh[: together if n else 2 * together]
        if not fresh or (together == 1 and fresh[0] != 0):
            break
        moved |= {pool.key(m) for m in fresh}
        known = len(pool)
        pool = Batch.joined([pool, *(neighbours(table, pool.take(np.array([m]))) for m in fresh)]).distinct()
        totals = np.concatenate([totals, measure(pool.take(np.arange(known, len(pool))))])
    return pool.take(np.argsort(totals, kind="stable")[:POOL])
