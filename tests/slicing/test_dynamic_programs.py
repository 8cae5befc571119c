"""What is compiled of the exact slicer against the same recurrences in plain Python, to the last bit."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.problem import SlicingProblem
from alpa_dejavu.slicing import AmpPipe, Dynamic
from alpa_dejavu.slicing._choices import Choices
from alpa_dejavu.slicing._graph import StageGraph, by_count
from alpa_dejavu.slicing._relaxed import Relaxation
from alpa_dejavu.slicing._stages import stages_of
from alpa_dejavu.slicing._table import Corridor, fits, least_sum
from alpa_dejavu.slicing.amp_pipe import amp_starts
from alpa_dejavu.testing import random_problem
from placed_problems import graph_of

SEEDS = st.integers(0, 2**32)
LAYERS = st.integers(1, 4)
FEW = settings(max_examples=60, deadline=None)


def drawn(seed, layers, devices=4, whole=False):
    """A problem; with whole numbers as costs many slicings cost the same."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, layers, devices, num_configs=3)
    costs = np.ceil(problem.costs_s) if whole else problem.costs_s
    return dataclasses.replace(problem, costs_s=np.where(rng.random(costs.shape) < 0.2, np.inf, costs))


def leaving(graph, node):
    return [arc for arc in range(len(graph)) if graph.tail[arc] == node]


def first_least(sums):
    """The least of (sum, what has it), the first of equals; infinity and None if there is none below infinity."""
    return min([(math.inf, None), *sums], key=lambda pair: pair[0])


@FEW
@given(seed=SEEDS, layers=LAYERS, objective=st.sampled_from(["training", "inference", "work"]), whole=st.booleans())
def test_of_the_choices_of_a_size_those_stay_that_no_earlier_one_beats(seed, layers, objective, whole):
    problem = dataclasses.replace(drawn(seed, layers, whole=whole), objective=objective)
    times = problem.num_micro_batches if objective == "work" else 1
    smallest, kept, found = min(problem.submesh_sizes), [], stages_of(problem)
    for i, j in zip(*np.triu_indices(layers), strict=True):
        for size in sorted(set(problem.submesh_sizes.tolist())):
            most, least = min(layers - 1 - j, (4 - size) // smallest), min(layers - 1 - j, 1)
            ways = []
            for s, c in np.ndindex(problem.costs_s.shape[2:]):
                cost, room = problem.costs_s[i, j, s, c], min(problem.followers[i, j, s, c], most)
                weight = 1.0 if objective == "inference" else times * cost + problem.once_s[i, j, s, c]
                if problem.submesh_sizes[s] == size and cost < np.inf and room >= least:
                    ways.append((cost, weight, -room, s * problem.costs_s.shape[3] + c))
            covered = -1
            for cost, weight, room, choice in sorted(ways):
                covered = max([-1, *(-other[2] for other in sorted(ways) if other < (cost, weight, room, choice)
                                     and other[1] <= weight)])  # fmt: skip
                if -room > covered:
                    kept.append((i, j, size, cost, weight, -room, covered, choice))
    columns = (
        found.first, found.last, found.size * found.unit, found.cost_s, found.weight, found.followers, found.covered,
    )  # fmt: skip
    assert list(zip(*columns, found.choice, strict=True)) == kept


@FEW
@given(seed=SEEDS, layers=LAYERS, devices=st.integers(1, 6), exactly=st.booleans(), whole=st.booleans())
def test_the_table_is_the_recurrence_over_nodes_and_devices(seed, layers, devices, exactly, whole):
    graph, _ = graph_of(drawn(seed, layers, 4, whole))

    @functools.cache
    def rest(node, left):
        if node == layers:
            return (0.0, None) if left == 0 else (math.inf, None)
        ways = [arc for arc in leaving(graph, node) if graph.size[arc] <= left]
        after = [rest(int(graph.head[arc]), left - int(graph.size[arc]))[0] for arc in ways]
        return first_least([(float(graph.weight[arc]) + sum_, arc) for arc, sum_ in zip(ways, after, strict=True)])

    least, arcs = least_sum(Corridor.whole(graph, devices, exactly))
    lefts = [devices] if exactly else range(devices + 1)
    truth, left = first_least([(rest(0, left)[0], left) for left in lefts])
    node, way = 0, []
    while left is not None and node < layers:
        way.append(rest(node, left)[1])
        node, left = int(graph.head[way[-1]]), left - int(graph.size[way[-1]])
    assert (least, arcs.tolist()) == (truth, way)


@FEW
@given(seed=SEEDS, layers=LAYERS, count=st.sampled_from([None, None, 1, 2, 3, 9]))
def test_with_numbers_of_stages_the_ways_are_those_that_memory_allows(seed, layers, count):
    graph, stages = graph_of(drawn(seed, layers))

    def ways(graph, node, behind=()):
        if graph.layers[node] == layers:
            return [behind]
        return [way for arc in leaving(graph, node) for way in ways(graph, graph.head[arc], (*behind, arc))]

    def allowed(way):
        after = range(len(way) - 1, -1, -1)
        fits = all(stages.covered[arc] < n <= stages.followers[arc] for arc, n in zip(way, after, strict=True))
        return fits and count in (None, len(way))

    counted = by_count(graph, stages.covered, stages.followers, count)
    assert (np.diff(counted.tail) >= 0).all()
    assert (np.diff(counted.layers) >= 0).all()
    found = [tuple(counted.stage[list(way)]) for start in range(counted.num_starts) for way in ways(counted, start)]
    assert sorted(found) == sorted(filter(allowed, ways(graph, 0)))


@FEW
@given(seed=SEEDS, layers=LAYERS, kinds=st.integers(1, 3), price=st.floats(-3, 3), coarse=st.booleans())
def test_what_prices_give_on_unlike_hosts(seed, layers, kinds, price, coarse):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, layers, 4, 2, True, kinds)
    choices = Choices(problem, problem.sites)
    prices = price * rng.random(len(choices.available))
    bound, charged = float(np.median(choices.bounds()[0])) if len(choices.bounds()[0]) else 1.0, choices.uses @ prices
    found = Relaxation(choices, bound, most_entries=0 if coarse else 10**9).at(prices)

    def crossed(table, layer, group, q):
        return table[layer, :, q].min() if coarse else table[layer, group, q]

    @functools.cache
    def rest(layer, group):
        sums = [math.inf]
        for last, q, way in np.ndindex(layers, *choices.costs_s.shape[2:]):
            entry, extra = (crossed(each, layer, group, q) for each in (choices.crossing_s, choices.crossing_weights))
            if last >= layer and choices.costs_s[layer, last, q, way] + entry <= bound:
                sums.append((choices.weights[layer, last, q, way] + extra) + then(last, q))
        return min(sums)

    def then(last, q):
        return charged[q] + (rest(last + 1, int(choices.group[q])) if last + 1 < layers else 0.0)

    assert found.rest.tolist() == [[rest(n, group if n else 0) for group in range(choices.num_groups)]
                                   for n in range(layers)]  # fmt: skip
    assert found.then.tolist() == [[then(n, q) for q in range(len(charged))] for n in range(layers)]
    # Another processor may add the products up in another order.
    assert found.value == pytest.approx(rest(0, 0) - prices @ choices.available, rel=1e-12)


def test_boundaries_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"cut_s must be of shape \(1, 4\), but it is of \(0, 4\)"):
        amp_starts(np.ones((2, 4, 4)), np.zeros((0, 4)), 2)


@pytest.mark.parametrize("slicer", [Dynamic(), AmpPipe()])
def test_arrays_of_any_layout_that_may_not_be_written(slicer):
    problem = drawn(3, 4)
    turned = np.asfortranarray(problem.costs_s), np.asfortranarray(problem.followers)
    for array in turned:
        array.flags.writeable = False
    other = dataclasses.replace(problem, costs_s=turned[0], max_n_succ_stages=turned[1])
    assert slicer.slice(other).stages == slicer.slice(problem).stages
    row = np.broadcast_to(np.arange(1.0, 5.0), (1, 4, 4))
    assert amp_starts(row, np.zeros((0, 4)), 2) == (0,)


def test_costs_of_zero_and_a_single_layer():
    assert Dynamic().slice(SlicingProblem(np.zeros((1, 1, 1, 1)), [2], 2, 4)).cost_s == 0.0


def test_a_node_that_no_stage_is_at_has_no_row():
    # Three nodes of layer 1, of which arcs lead to one alone; rows of the others would not fit.
    tail, head = np.array([0, 2]), np.array([2, 4])
    graph = StageGraph(np.array([0, 1, 1, 1, 2]), 2, tail, head, np.array([1, 1]), np.array([2.0, 3.0]), np.arange(2))
    most = np.array([2, 10**15, 1, 10**15, 0])
    corridor = Corridor(graph, 2, np.array([2, 0, 0, 0, 0]), most)
    assert fits(corridor)
    least, arcs = least_sum(corridor)
    assert (least, arcs.tolist()) == (5.0, [0, 1])


@FEW
@given(seed=SEEDS, layers=LAYERS, kinds=st.integers(1, 3), waits=st.booleans())
def test_costs_that_stages_may_have_are_all_pairs_of_a_way_and_what_it_takes_in_and_sends(seed, layers, kinds, waits):
    problem = random_problem(np.random.default_rng(seed), layers, 4, 2, True, kinds)
    choices = Choices(problem, dataclasses.replace(problem.sites, both_wait=waits))
    crossing, group = choices.crossing_s, choices.group
    costs = {
        cost + taking + sending
        for (i, j, q, _), cost in np.ndenumerate(choices.costs_s)
        if math.isfinite(cost)
        for taking in crossing[i, :, q]
        for sending in (crossing[j + 1, group[q]] if waits and j + 1 < layers else [0.0])
        if math.isfinite(taking + sending)
    }
    greatest, least = choices.bounds()
    assert greatest.tolist() == least.tolist() == sorted(costs)
    greatest, least = choices.bounds(0, 3)
    places = np.floor(3 * np.log(np.maximum(sorted(costs), np.finfo(float).tiny)))
    assert [len(greatest), len(least)] == [len(set(places.tolist()))] * 2
    assert all(((least <= cost) & (cost <= greatest)).any() for cost in costs)
