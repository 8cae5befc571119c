"""Elimination and the integer program next to trying out every choice of a cost graph."""

import itertools

import numpy as np
import pytest

from alpa_dejavu.sharding import LogicalMesh, ShardingOptions, boundary_solve
from alpa_dejavu.sharding._blocks import Blocks, undominated
from alpa_dejavu.sharding._eliminate import solve_by_elimination
from alpa_dejavu.sharding._graph import CostGraph
from alpa_dejavu.sharding._ilp import solve_ilp
from alpa_dejavu.sharding._options import INFINITY_COST
from layer_models import gpt, sharded_as_one


def random_graph(seed, count=7, most=4, density=0.5, forbidden=0.1):
    """Costs over several powers of ten, some pairs forbidden, never those of all nodes' first choices."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, most + 1, count)
    nodes = {3 * n: rng.exponential(10.0 ** rng.integers(-2, 3), size) for n, size in enumerate(sizes)}
    edges = {}
    for a, b in itertools.combinations(range(count), 2):
        if rng.random() < density:
            matrix = rng.normal(0.0, 10.0 ** rng.integers(-2, 3), (sizes[a], sizes[b]))
            matrix[rng.random(matrix.shape) < forbidden] = np.inf
            matrix[0, 0] = min(matrix[0, 0], 1.0)
            edges[3 * a, 3 * b] = matrix
    return CostGraph(nodes, edges)


def random_limits(seed, graph, share):
    """Two limits; each allows that share of the way from the least to the most that choices can take."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(2):
        taken = {node: rng.uniform(1.0, 4.0, len(cost)) for node, cost in graph.costs.items() if rng.random() < 0.8}
        low, high = (sum(float(pick(each)) for each in taken.values()) for pick in (np.min, np.max))
        if taken:
            rows.append((taken, low + share * (high - low)))
    return tuple(rows)


def every(graph):
    ranges = [range(len(cost)) for cost in graph.costs.values()]
    return (dict(zip(graph.costs, choice, strict=True)) for choice in itertools.product(*ranges))


def fits(choice, limits):
    return all(sum(taken[node][choice[node]] for node in taken) <= limit for taken, limit in limits)


@pytest.mark.parametrize("seed", range(60))
def test_both_find_the_best(seed):
    graph = random_graph(seed, count=1 + seed % 6, density=[0.3, 0.6, 1.0][seed % 3])
    best = min(map(graph.objective, every(graph)))
    assert graph.objective(solve_ilp(graph)) == pytest.approx(best)
    eliminated = solve_by_elimination(graph, lambda core: min(every(core), key=core.objective), Blocks())
    assert graph.objective(eliminated) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_memory_limits_are_kept(seed, share):
    graph = random_graph(seed, count=5, most=3)
    limits = random_limits(seed, graph, share)
    best = min((graph.objective(choice) for choice in every(graph) if fits(choice, limits)), default=np.inf)
    if not np.isfinite(best):
        with pytest.raises(ValueError, match="no sharding meets the memory budget"):
            solve_ilp(graph, limits)
        return
    exact = solve_ilp(graph, limits)
    assert fits(exact, [(taken, limit * (1 + 1e-6)) for taken, limit in limits])
    assert graph.objective(exact) == pytest.approx(best)


def test_layers_are_solved_as_well_where_elimination_gives_up(monkeypatch):
    def too_close(*_):
        raise ValueError("the graph hangs together too closely")

    (layer,) = gpt(num_blocks=1, batch=4, length=16, hidden=64, heads=4, vocabulary=128)
    mesh = LogicalMesh((2, 2), (1.0, 1.0), (1.0, 0.1))
    exact = sharded_as_one([layer], mesh, ShardingOptions()).cost
    monkeypatch.setattr(boundary_solve, "JointCosts", too_close)
    assert sharded_as_one([layer], mesh, ShardingOptions()).cost == pytest.approx(exact)


def test_a_ring_of_four_needs_no_solver():
    matrix = np.array([[0.0, 3.0], [1.0, 0.0]])
    edges = {(0, 1): matrix, (1, 2): matrix, (2, 3): matrix, (0, 3): matrix}
    ring = CostGraph({i: np.array([i, 1.0]) for i in range(4)}, edges)

    def fail(core):
        raise AssertionError(f"{len(core.costs)} nodes are left")

    best = min(map(ring.objective, every(ring)))
    assert ring.objective(solve_by_elimination(ring, fail, Blocks())) == pytest.approx(best)


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
    assert len(blocks) == 2


def test_what_is_infinitely_dear_is_paid_only_where_it_must_be():
    free = CostGraph({0: np.array([INFINITY_COST, 5.0])}, {})
    bound = CostGraph({0: np.array([INFINITY_COST, INFINITY_COST + 7])}, {})
    assert solve_ilp(free) == {0: 1}
    assert bound.objective(solve_ilp(bound)) >= INFINITY_COST
