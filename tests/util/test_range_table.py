"""Arrays that hold what alike ranges of layers have in common once, against the arrays that they stand for."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_dejavu._util.range_sums import range_sum, stage_sum
from alpa_dejavu._util.range_table import RangeKinds, RangeTable, common_kinds
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.costs.memory import successors_that_fit
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.stage_costs import COST_KINDS
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.problem import Run
from alpa_dejavu.slicing import Dynamic
from models import chain

UPPER = np.triu_indices(6)


def blocks(num_blocks=4, unlike=()):
    """An embedding, alike blocks and a head; of the unlike blocks each takes more than the one before."""
    layers = list(chain(num_blocks + 2, parameter_bytes=1e6, activation_bytes=1e5).layers)
    for n, flop in ((0, 1.0), (num_blocks + 1, 3.0), *((n, 2.0 + n) for n in unlike)):
        layers[n] = chain(1, flop=flop * 1e10).layers[0]
    return dataclasses.replace(chain(num_blocks + 2, parameter_bytes=1e6, activation_bytes=1e5), layers=tuple(layers))


@given(st.lists(st.integers(1, 3), min_size=2, max_size=7), st.integers(0, 9))
def test_kinds_are_of_ranges_with_equal_values(work, seed):
    values = np.stack([range_sum(work), range_sum(np.random.default_rng(seed).permutation(work) / 3)])
    kinds = RangeKinds.of_lengths(len(work)).split(values)
    table = RangeTable(kinds.rows(values).T, kinds.of_range)
    upper = np.triu_indices(len(work))
    assert np.allclose(np.asarray(table)[upper], np.moveaxis(values, 0, -1)[upper], rtol=1e-10)
    different = {(*np.round(values[:, i, j], 6).tolist(), j - i) for i, j in zip(*upper, strict=True)}
    assert len(kinds) == len(different) + 1, "those of no layers are one kind"


def test_functions_entry_by_entry_are_those_of_the_arrays():
    rng = np.random.default_rng(0)
    kinds = RangeKinds.of_lengths(6)
    tables = [RangeTable(rng.random((len(kinds), 3, 2)), kinds.of_range) for _ in range(2)]
    arrays = [np.asarray(table) for table in tables]
    for function in (
        lambda a, b: a + b * 2, lambda a, b: (a > b) & np.isfinite(a), lambda a, b: a * np.arange(3.0)[:, None] - b,
    ):  # fmt: skip
        both = function(*tables)
        assert isinstance(both, RangeTable)
        assert np.array_equal(np.asarray(both), function(*arrays))
    assert np.array_equal(tables[0] + np.arange(6.0)[:, None, None], arrays[0] + np.arange(6.0)[:, None, None])
    assert np.sum(tables[0]) == pytest.approx(arrays[0].sum())
    firsts, lasts = np.array([0, 2]), np.array([3, 5])
    for key in ((0, 3, 1, 1), (2, 4), (slice(None), slice(None), [2, 0]), (firsts, lasts, 1, [0, 1]), 3, (..., 0)):
        assert np.array_equal(np.asarray(tables[0][key]), arrays[0][key])
    other = RangeTable(rng.random((2, 3, 2)), np.broadcast_to(np.arange(6)[:, None] > 2, (6, 6)).astype(int))
    common = common_kinds([tables[0], other], np.broadcast_to(np.arange(6) == 1, (6, 6)).astype(int))
    for table in (tables[0], other):
        assert np.array_equal(np.asarray(common.table(table))[UPPER], np.asarray(table)[UPPER])
    assert np.array_equal(common.table(arrays[0]).rows, arrays[0][common.firsts, common.lasts])


@pytest.mark.parametrize("unlike", [(), (3,), (1, 2, 4)])
def test_a_table_has_what_every_range_costs(unlike):
    cluster, run = named_cluster("p3.16xlarge", 2), Run(4)
    space = search_space(cluster, 8, remat=("none", "layer"), zero=(0, 3))
    table = cost_table(blocks(unlike=unlike), cluster, space, run, CostModels.named())
    assert len(table.offered.rows) <= (17 if not unlike else 22), "of 21 ranges some are alike"
    for s, (on, configs) in enumerate(zip(table.devices, space.configs, strict=True)):
        for c, config in enumerate(configs):
            if config is None:
                continue
            for name, seconds in zip(COST_KINDS, table.stage_costs.seconds(on, config), strict=True):
                assert np.allclose(np.asarray(getattr(table, name)[:, :, s, c])[UPPER], seconds[UPPER], rtol=1e-10)
            memory = table.stage_costs.memory(config)
            followers = successors_that_fit(memory, table.limits(s), run)
            assert np.array_equal(np.asarray(table.max_n_succ_stages[:, :, s, c])[UPPER], followers[UPPER])
            assert np.allclose(np.asarray(table.memory[s][c].peak(3))[UPPER], memory.peak(3)[UPPER], rtol=1e-10)


@pytest.mark.parametrize("senders_wait", [False, True])
def test_slicings_are_those_of_the_arrays(senders_wait):
    cluster, run = named_cluster("p3.16xlarge", 2), Run(8)
    space = search_space(cluster, 8, remat=("none", "layer"))
    table = cost_table(blocks(), cluster, space, run, CostModels.named())
    problem = table.slicing_problem(cluster, space, run, senders_wait=senders_wait)
    costs = np.asarray(table.costs_s)
    if senders_wait:
        interstage = table.interstage
        sent = (interstage.forward_s + interstage.backward_s)[:, np.diagonal(interstage.links)]
        costs[:, :-1] += sent[None, 1:, :, None]
    assert np.array_equal(np.asarray(problem.costs_s)[UPPER], costs[UPPER])
    arrays = {name: np.asarray(getattr(problem, name)) for name in ("costs_s", "max_n_succ_stages", "per_step_s")}
    for num_stages in (None, 1, 3):
        alike = dataclasses.replace(problem, num_stages=num_stages)
        one, other = Dynamic().slice(alike), Dynamic().slice(dataclasses.replace(alike, **arrays))
        assert (one.stages, one.cost_s, one.lower_bound_s) == (other.stages, other.cost_s, other.lower_bound_s)


def test_sums_over_stages_are_those_of_their_layers():
    rng, size = np.random.default_rng(1), 9
    of_stages = np.full((size,) * 3, -1)
    for first in range(size):
        for last in range(first, size):
            of_stages[first, last, first : last + 1] = rng.integers(0, 4, last + 1 - first) * (rng.random() < 0.5)
    values = rng.random((2, 4))
    sums = stage_sum(values, of_stages)
    for first, last in zip(*np.triu_indices(size), strict=True):
        assert np.allclose(sums[:, first, last], values[:, of_stages[first, last, first : last + 1]].sum(axis=1))
