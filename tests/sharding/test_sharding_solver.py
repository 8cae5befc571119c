"""Elimination and the integer program find what trying out every choice finds."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.sharding._blocks import Blocks, undominated
from alpa_dejavu.sharding._eliminate import solve_by_elimination
from alpa_dejavu.sharding._graph import CostGraph
from alpa_dejavu.sharding._ilp import solve_ilp
from alpa_dejavu.sharding._options import INFINITY_COST


@st.composite
def graphs(draw, max_nodes=5):
    count = draw(st.integers(1, max_nodes))
    costs = st.sampled_from([0.0, 0.0, 1.0, 2.5, 7.0, -1.0, 40.0])
    sizes = [draw(st.integers(1, 3)) for _ in range(count)]
    nodes = {i: np.array([draw(costs) for _ in range(n)]) for i, n in enumerate(sizes)}
    edges = {}
    for a, b in itertools.combinations(range(count), 2):
        if draw(st.booleans()):
            entries = [draw(st.one_of(costs, st.just(np.inf))) for _ in range(sizes[a] * sizes[b])]
            edges[a, b] = np.array(entries).reshape(sizes[a], sizes[b])
    return CostGraph(nodes, edges)


def _best(graph, allowed=lambda choice: True):
    ranges = [range(len(cost)) for cost in graph.costs.values()]
    every = (dict(zip(graph.costs, choice, strict=True)) for choice in itertools.product(*ranges))
    return min((graph.objective(choice) for choice in every if allowed(choice)), default=np.inf)


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_the_integer_program_equals_enumeration(graph):
    best = _best(graph)
    if np.isfinite(best):
        assert graph.objective(solve_ilp(graph)) == pytest.approx(best)
    else:
        with pytest.raises(ValueError, match="no sharding meets"):
            solve_ilp(graph)


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_elimination_equals_enumeration(graph):
    def by_enumeration(core):
        ranges = [range(len(cost)) for cost in core.costs.values()]
        every = [dict(zip(core.costs, choice, strict=True)) for choice in itertools.product(*ranges)]
        return min(every, key=core.objective)

    best = _best(graph)
    if np.isfinite(best):
        assert graph.objective(solve_by_elimination(graph, by_enumeration, Blocks())) == pytest.approx(best)


def test_a_ring_of_four_needs_no_solver():
    matrix = np.array([[0.0, 3.0], [1.0, 0.0]])
    ring = CostGraph(
        {i: np.array([i, 1.0]) for i in range(4)}, {(0, 1): matrix, (1, 2): matrix, (2, 3): matrix, (0, 3): matrix}
    )

    def fail(core):
        raise AssertionError(f"{len(core.costs)} nodes are left")

    assert ring.objective(solve_by_elimination(ring, fail, Blocks())) == pytest.approx(_best(ring))


@settings(max_examples=60, deadline=None)
@given(graphs(4), st.integers(2, 8))
def test_memory_limits_are_kept(graph, limit):
    memory = {node: np.arange(1.0, len(cost) + 1)[::-1] for node, cost in graph.costs.items()}

    def fits(choice):
        return sum(memory[node][i] for node, i in choice.items()) <= limit

    best = _best(graph, fits)
    if not np.isfinite(best):
        with pytest.raises(ValueError, match="budget"):
            solve_ilp(graph, ((memory, float(limit)),))
        return
    choice = solve_ilp(graph, ((memory, float(limit)),))
    assert fits(choice)
    assert graph.objective(choice) == pytest.approx(best)


def test_what_is_infinitely_dear_is_paid_only_where_it_must_be():
    free = CostGraph({0: np.array([INFINITY_COST, 5.0])}, {})
    bound = CostGraph({0: np.array([INFINITY_COST, INFINITY_COST + 7])}, {})
    assert solve_ilp(free) == {0: 1}
    assert bound.objective(solve_ilp(bound)) >= INFINITY_COST


def test_a_fractional_relaxation_is_branched_on():
    differ = np.array([[1.0, 0.0], [0.0, 1.0]])
    triangle = CostGraph({i: np.zeros(2) for i in range(3)}, {(0, 1): differ, (1, 2): differ, (0, 2): differ})
    assert triangle.objective(solve_ilp(triangle)) == pytest.approx(1.0)


def test_dominated_and_impossible_choices_go():
    cost = np.array([1.0, 2.0, 0.0, 1.0])
    matrix = np.array([[0.0, 0.0], [0.0, 0.0], [np.inf, np.inf], [0.0, -5.0]])
    assert undominated(cost, matrix).tolist() == [3]


def test_steps_are_taken_once_for_equal_arrays():
    blocks, a, b = Blocks(), np.ones(2), np.ones(2)
    first = blocks.once(np.add, a, b)
    assert blocks.once(np.add, a, b) is first
    assert blocks.once(np.add, b, a) is not first
    assert (blocks.steps, blocks.repeated) == (3, 1)
