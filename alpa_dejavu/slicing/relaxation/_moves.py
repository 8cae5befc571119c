"""All plans that are one move away from a plan.

A cut is moved, a stage gets another choice or two change theirs, two neighbours become one stage, or one becomes two.
Only allowed plans are given: what takes too many devices, or leaves some, is left out.
"""

from __future__ import annotations

import numpy as np

from alpa_dejavu.slicing.relaxation._batch import Batch, IntArray, Table


def neighbours(table: Table, plan: Batch) -> Batch:
    """Returns the allowed plans that are one move away from a single plan, some of them more than once.

    A move puts a cut between layers elsewhere, gives a stage another submesh and config, swaps those of two stages,
    merges two neighbouring stages, or splits one.
    """
    count = int(plan.count[0])
    ends, submesh, config = (part[0, :count] for part in (plan.ends, plan.submesh, plan.config))
    rows = [_cuts(ends, submesh, config), _choices(table, ends, submesh, config), _swaps(ends, submesh, config)]
    if table.problem.num_stages is None:
        rows += [_merges(table, ends, submesh, config), _splits(table, ends, submesh, config)]
    found = Batch.joined([each for each in rows if len(each)] or [plan])
    return found.take(table.allowed(found))


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
    one, other = np.triu_indices(len(ends), 1)
    submeshes, configs = np.tile(submesh, (len(one), 1)), np.tile(config, (len(one), 1))
    rows = np.arange(len(one))
    for table, old in ((submeshes, submesh), (configs, config)):
        table[rows, one], table[rows, other] = old[other], old[one]
    return _many(np.tile(ends, (len(one), 1)), submeshes, configs)


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
