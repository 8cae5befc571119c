"""Local steps from plans to better ones: a best-first search over the plans that are one move away.

A cut is moved, a stage gets another choice or two change theirs, two neighbours become one stage, or one becomes two.
Only allowed plans are given: what takes too many devices, or leaves some, is left out.
"""

from __future__ import annotations

import numpy as np

from alpa_dejavu.slicing.relaxation._batch import Batch, IntArray, PlanTable
from alpa_dejavu.slicing.relaxation._measure import PlanCost

POOL, FAR = 64, 1.1
"""So many plans are kept, and moved from if they cost less than so many times the best."""


def by_moves(measure: PlanCost, plans: Batch, rounds: int, together: int) -> Batch:
    """Improves plans by a best-first search: moves are made from the best plans met that none were made from yet.

    Moves are made from `together` plans in each of at most `rounds` rounds; if from one, the search ends where no move
    makes it better. Returns the best plans met, best first.
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
        before = len(pool)
        pool = Batch.joined([pool, *(_neighbours(measure.table, pool.take(np.array([m]))) for m in fresh)]).distinct()
        totals = np.concatenate([totals, measure(pool.take(np.arange(before, len(pool))))])
    return pool.take(np.argsort(totals, kind="stable")[:POOL])


def _neighbours(table: PlanTable, plan: Batch) -> Batch:
    """Returns the allowed plans that are one move away from a single plan, some of them more than once."""
    count = int(plan.count[0])
    own = ends, submesh, config = plan.ends[0, :count], plan.submesh[0, :count], plan.config[0, :count]
    choices = tuple(table.problem.costs_s.shape[2:])
    moved = [_cuts(*own), _rechosen(np.arange(count), *own, choices), _swaps(*own)]
    if table.problem.num_stages is None:
        if count > 1:
            # Of two neighbours that become one, the later one's end stays.
            kept = np.array([np.delete(np.arange(count), k) for k in range(count - 1)])
            moved.append(_rechosen(np.arange(count - 1), ends[kept], submesh[kept], config[kept], choices))
        moved += _splits(table, *own)
    plans = Batch.joined([rows for rows in moved if len(rows)] or [plan])
    return plans.take(table.allowed(plans))


def _many(ends: IntArray, submesh: IntArray, config: IntArray) -> Batch:
    return Batch(ends, submesh, config, np.full(len(ends), ends.shape[1], dtype=np.int64))


def _cuts(ends: IntArray, submesh: IntArray, config: IntArray) -> Batch:
    """Returns plans with each cut moved to each other place between its neighbours."""
    bounds = np.concatenate([[0], ends])
    rows = []
    for k in range(len(ends) - 1):
        places = np.arange(bounds[k] + 1, bounds[k + 2])
        places = places[places != ends[k]]
        moved = np.tile(ends, (len(places), 1))
        moved[:, k] = places
        rows.append(moved)
    every = np.concatenate(rows) if rows else np.zeros((0, len(ends)), dtype=np.int64)
    return _many(every, np.tile(submesh, (len(every), 1)), np.tile(config, (len(every), 1)))


def _rechosen(stages: IntArray, ends: IntArray, submesh: IntArray, config: IntArray, choices: tuple[int, ...]) -> Batch:
    """Returns plans with one of `stages` (of one plan, or one for each) on each submesh with each config."""
    row, s, c = (index.ravel() for index in np.indices((len(stages), *choices)))
    every = [np.broadcast_to(part, (len(stages), part.shape[-1]))[row] for part in (ends, submesh, config)]
    at = np.arange(len(row)), stages[row]
    every[1][at], every[2][at] = s, c
    return _many(*every)


def _swaps(ends: IntArray, submesh: IntArray, config: IntArray) -> Batch:
    """Returns plans in which each two stages have each other's choice."""
    first, second = np.triu_indices(len(ends), 1)
    submeshes, configs = np.tile(submesh, (len(first), 1)), np.tile(config, (len(first), 1))
    rows = np.arange(len(first))
    for table, old in ((submeshes, submesh), (configs, config)):
        table[rows, first], table[rows, second] = old[second], old[first]
    return _many(np.tile(ends, (len(first), 1)), submeshes, configs)


def _splits(table: PlanTable, ends: IntArray, submesh: IntArray, config: IntArray) -> list[Batch]:
    """Returns plans with each stage cut in two, at each place, on submeshes that take as much, with each config."""
    sizes, num_configs = table.problem.submesh_sizes, table.problem.costs_s.shape[3]
    plans = []
    for k, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        places = np.arange(first + 1, end)
        pairs = np.argwhere(sizes[:, None] + sizes[None, :] == sizes[submesh[k]])
        if table.problem.devices == "at most" and not len(pairs):
            pairs = np.argwhere(sizes[:, None] + sizes[None, :] <= sizes[submesh[k]])
        at, pair, c = (index.ravel() for index in np.indices((len(places), len(pairs), num_configs)))
        both = np.stack([places[at], np.full(len(at), end)], 1), pairs[pair], np.stack([c, c], 1)
        rows = [
            np.concatenate([np.tile(old[:k], (len(at), 1)), new, np.tile(old[k + 1 :], (len(at), 1))], axis=1)
            for old, new in zip((ends, submesh, config), both, strict=True)
        ]
        plans.append(_many(*rows))
    return plans
