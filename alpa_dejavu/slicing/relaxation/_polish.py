"""Local steps from plans to better ones: a best-first search over the plans that are one move away.

A cut is moved, a stage gets another choice or two change theirs, two neighbours become one stage, or one becomes two.
Only allowed plans are given: what takes too many devices, or leaves some, is left out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from alpa_dejavu.slicing.relaxation._batch import Batch, FloatArray, IntArray, Table

__all__ = ["by_moves"]

Measure = Callable[[Batch], FloatArray]
"""A function from plans to their costs; shape (N,), infinite where one isn't allowed."""
POOL, FAR = 64, 1.1
"""So many plans are kept, and moved from if they cost less than so many times the best."""


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
        before = len(pool)
        pool = Batch.joined([pool, *(_neighbours(table, pool.take(np.array([m]))) for m in fresh)]).distinct()
        totals = np.concatenate([totals, measure(pool.take(np.arange(before, len(pool))))])
    return pool.take(np.argsort(totals, kind="stable")[:POOL])


def _neighbours(table: Table, plan: Batch) -> Batch:
    """Returns the allowed plans that are one move away from a single plan, some of them more than once.

    A move puts a cut between layers elsewhere, gives a stage another submesh and config, swaps those of two stages,
    merges two neighbouring stages, or splits one.
    """
    count = int(plan.count[0])
    ends, submesh, config = (part[0, :count] for part in (plan.ends, plan.submesh, plan.config))
    rows = [_cuts(ends, submesh, config), _choices(table, ends, submesh, config), _swaps(ends, submesh, config)]
    if table.problem.num_stages is None:
        rows += [_merges(table, ends, submesh, config), _splits(table, ends, submesh, config)]
    moved = Batch.joined([each for each in rows if len(each)] or [plan])
    return moved.take(table.allowed(moved))


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


def _choices(table: Table, ends: IntArray, submesh: IntArray, config: IntArray) -> Batch:
    """Returns plans with each stage on each submesh with each config, its own included."""
    num_submeshes, num_configs = table.problem.costs_s.shape[2:]
    stage, s, c = (each.ravel() for each in np.indices((len(ends), num_submeshes, num_configs)))
    submeshes, configs = np.tile(submesh, (len(stage), 1)), np.tile(config, (len(stage), 1))
    rows = np.arange(len(stage))
    submeshes[rows, stage], configs[rows, stage] = s, c
    return _many(np.tile(ends, (len(stage), 1)), submeshes, configs)


def _swaps(ends: IntArray, submesh: IntArray, config: IntArray) -> Batch:
    """Returns plans in which each two stages have each other's choice."""
    first, second = np.triu_indices(len(ends), 1)
    submeshes, configs = np.tile(submesh, (len(first), 1)), np.tile(config, (len(first), 1))
    rows = np.arange(len(first))
    for table, old in ((submeshes, submesh), (configs, config)):
        table[rows, first], table[rows, second] = old[second], old[first]
    return _many(np.tile(ends, (len(first), 1)), submeshes, configs)


def _merges(table: Table, ends: IntArray, submesh: IntArray, config: IntArray) -> Batch:
    """Returns plans with each two neighbours as one stage, with each choice."""
    num_submeshes, num_configs = table.problem.costs_s.shape[2:]
    if len(ends) == 1:
        return _many(*(np.zeros((0, 1), dtype=np.int64),) * 3)
    stage, s, c = (each.ravel() for each in np.indices((len(ends) - 1, num_submeshes, num_configs)))
    kept = np.array([np.delete(np.arange(len(ends)), k) for k in range(len(ends) - 1)])
    submeshes, configs = submesh[kept][stage], config[kept][stage]
    rows = np.arange(len(stage))
    submeshes[rows, stage], configs[rows, stage] = s, c
    return _many(ends[kept][stage], submeshes, configs)


def _splits(table: Table, ends: IntArray, submesh: IntArray, config: IntArray) -> Batch:
    """Returns plans with each stage cut in two, at each place, on submeshes that take as much, with each config."""
    sizes = table.problem.submesh_sizes
    firsts = np.concatenate([[0], ends[:-1]])
    rows = []
    for k in range(len(ends)):
        places = np.arange(firsts[k] + 1, ends[k])
        pairs = np.argwhere(sizes[:, None] + sizes[None, :] == sizes[submesh[k]])
        if table.problem.devices == "at most" and not len(pairs):
            pairs = np.argwhere(sizes[:, None] + sizes[None, :] <= sizes[submesh[k]])
        configs = np.arange(table.problem.costs_s.shape[3])
        at, pair, c = (each.ravel() for each in np.indices((len(places), len(pairs), len(configs))))
        if not len(at):
            continue
        rows.append(
            tuple(
                np.concatenate(
                    [np.tile(old[:k], (len(at), 1)), new, np.tile(old[k + 1 :], (len(at), 1))], axis=1
                ).astype(np.int64)
                for old, new in (
                    (ends, np.stack([places[at], np.full(len(at), ends[k])], axis=1)),
                    (submesh, pairs[pair]),
                    (config, np.stack([configs[c]] * 2, axis=1)),
                )
            )
        )
    if not rows:
        return _many(*(np.zeros((0, len(ends) + 1), dtype=np.int64),) * 3)
    return _many(*(np.concatenate([row[n] for row in rows]) for n in range(3)))
