"""Elimination, the integer program and the relaxation next to trying out every choice of a cost graph."""

import itertools

import numpy as np
import pytest

from alpa_dejavu.sharding import LogicalMesh, ShardingOptions, _solve, boundary_solve, solve
from alpa_dejavu.sharding._blocks import Blocks, undominated
from alpa_dejavu.sharding._eliminate import solve_by_elimination
from alpa_dejavu.sharding._graph import CostGraph
from alpa_dejavu.sharding._ilp import solve_ilp
from alpa_dejavu.sharding._options import INFINITY_COST
from alpa_dejavu.sharding._solve import NamedSolver
from alpa_dejavu.sharding.experimental import RelaxedGraph, annealed, moved_costs, settled, solve_relaxed
from layer_models import gpt, sharded_as_one
from operators import two_layer_gradients

DEAR = 1e6
"""A cost above all that random graphs have."""


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


solve_with_relaxed = NamedSolver("relaxed")


def every(graph):
    ranges = [range(len(cost)) for cost in graph.costs.values()]
    return (dict(zip(graph.costs, choice, strict=True)) for choice in itertools.product(*ranges))


def fits(choice, limits):
    return all(sum(taken[node][choice[node]] for node in taken) <= limit for taken, limit in limits)


@pytest.mark.parametrize("seed", range(60))
def test_exact_solvers_find_the_best_and_the_relaxation_stands_around_it(seed):
    graph = random_graph(seed, count=1 + seed % 6, density=[0.3, 0.6, 1.0][seed % 3])
    best = min(map(graph.objective, every(graph)))
    assert graph.objective(solve_ilp(graph)) == pytest.approx(best)
    eliminated = solve_by_elimination(graph, lambda core: min(every(core), key=core.objective), Blocks())
    assert graph.objective(eliminated) == pytest.approx(best)
    relaxed = solve_relaxed(graph)
    rounding = 1e-9 * DEAR
    assert relaxed.cost == graph.objective(relaxed.choice)
    assert relaxed.lower_bound - rounding <= best <= relaxed.cost + rounding


def test_most_small_graphs_are_solved_to_the_optimum():
    ratios = []
    for seed in range(20):
        graph = random_graph(1000 + seed, count=12, most=5, density=0.25)
        ratios.append(np.isclose(solve_relaxed(graph).cost, graph.objective(solve_ilp(graph))))
    assert np.mean(ratios) >= 0.8


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_memory_limits_are_kept(seed, share):
    graph = random_graph(seed, count=5, most=3)
    limits = random_limits(seed, graph, share)
    best = min((graph.objective(choice) for choice in every(graph) if fits(choice, limits)), default=np.inf)
    rounding = 1e-9 * DEAR
    if not np.isfinite(best):
        for solver in (solve_with_relaxed, solve_ilp):
            with pytest.raises(ValueError, match="no sharding meets the memory budget"):
                solver(graph, limits)
        return
    exact = solve_ilp(graph, limits)
    assert fits(exact, [(taken, limit * (1 + 1e-6)) for taken, limit in limits])
    assert graph.objective(exact) == pytest.approx(best)
    try:
        relaxed = solve_relaxed(graph, limits)
    except ValueError:
        assert share < 1.0
        assert graph.objective(solve_with_relaxed(graph, limits)) == pytest.approx(best)
        return
    assert fits(relaxed.choice, [(taken, limit * (1 + 1e-12)) for taken, limit in limits])
    assert relaxed.lower_bound - rounding <= best <= relaxed.cost + rounding


@pytest.mark.parametrize("budget", [-1.0, 3e6])
def test_the_engine_takes_it_by_name(budget):
    operators, mesh = two_layer_gradients(1024, 256), LogicalMesh((2, 2), (1.0, 1.0), (1.0, 0.1))
    exact, relaxed = (
        solve(operators, mesh, ShardingOptions(solver=name, memory_budget_per_device=budget))
        for name in ("ilp", "relaxed")
    )
    assert exact.lower_bound == exact.objective
    assert relaxed.lower_bound <= exact.objective * (1 + 1e-9) <= relaxed.objective * (1 + 2e-9)


def test_an_unknown_solver_is_refused():
    with pytest.raises(ValueError, match="the solver is 'simplex', but must be one of 'ilp', 'relaxed'"):
        ShardingOptions(solver="simplex")


def test_layers_take_it_where_elimination_gives_up(monkeypatch):
    def too_close(*_):
        raise ValueError("the graph hangs together too closely")

    def counted(graph, memory):
        called.append(len(graph.costs))
        return solve_relaxed(graph, memory)

    called: list[int] = []
    monkeypatch.setattr(boundary_solve, "JointCosts", too_close)
    monkeypatch.setattr(_solve, "solve_relaxed", counted)
    (layer,) = gpt(num_blocks=1, batch=4, length=16, hidden=64, heads=4, vocabulary=128)
    mesh = LogicalMesh((2, 2), (1.0, 1.0), (1.0, 0.1))
    exact = sharded_as_one([layer], mesh, ShardingOptions()).cost
    assert not called
    relaxed = sharded_as_one([layer], mesh, ShardingOptions(solver="relaxed")).cost
    assert called
    assert exact * (1 - 1e-9) <= relaxed <= 1.01 * exact


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


def test_the_bound_of_a_tree_is_its_optimum():
    rng = np.random.default_rng(0)
    edges = {(int(rng.integers(n)), n): rng.normal(size=(4, 4)) for n in range(1, 30)}
    tree = CostGraph({n: rng.normal(size=4) for n in range(30)}, edges)
    assert solve_relaxed(tree).lower_bound == pytest.approx(tree.objective(solve_ilp(tree)))


def test_the_same_again():
    graph = random_graph(5, count=12)
    first, again = solve_relaxed(graph), solve_relaxed(graph)
    assert (first.choice, first.cost, first.lower_bound) == (again.choice, again.cost, again.lower_bound)


def test_rounding_never_costs_more_than_the_shares():
    graph = random_graph(8, count=10, forbidden=0.0)
    problem = RelaxedGraph(graph, (), DEAR)
    shares = problem.softmax(np.random.default_rng(0).uniform(size=len(problem.costs)))
    rows = dict(zip(graph.costs, np.split(shares, problem.first[1:-1]), strict=True))
    expected = sum(cost @ rows[node] for node, cost in graph.costs.items())
    expected += sum(rows[a] @ matrix @ rows[b] for (a, b), matrix in graph.edges.items())
    assert graph.objective(dict(zip(graph.costs, settled(problem, shares), strict=True))) <= expected + 1e-9 * DEAR


def test_shares_become_choices():
    problem = RelaxedGraph(moved_costs(random_graph(9, count=10, forbidden=0.0)), (), DEAR)
    shares = annealed(problem, 0.5, 0)
    assert np.add.reduceat(shares, problem.first[:-1]) == pytest.approx(1.0)
    assert np.maximum.reduceat(shares, problem.first[:-1]).mean() > 0.95


def test_what_is_infinitely_dear_is_paid_only_where_it_must_be():
    free = CostGraph({0: np.array([INFINITY_COST, 5.0])}, {})
    bound = CostGraph({0: np.array([INFINITY_COST, INFINITY_COST + 7])}, {})
    assert solve_relaxed(free).choice == solve_ilp(free) == {0: 1}
    assert min(solve_relaxed(bound).cost, bound.objective(solve_ilp(bound))) >= INFINITY_COST
    with pytest.raises(ValueError, match="ilp"):
        solve_relaxed(CostGraph({0: np.array([np.inf])}, {}))
    assert solve_relaxed(CostGraph({}, {})).choice == {}


@pytest.mark.parametrize("seed", range(6))
def test_moving_costs_changes_no_choices_cost_and_raises_the_least_costs(seed):
    graph = random_graph(seed, count=8, forbidden=0.0)
    moved = moved_costs(graph)
    rng = np.random.default_rng(seed)
    for _ in range(20):
        choice = {node: int(rng.integers(len(cost))) for node, cost in graph.costs.items()}
        assert moved.objective(choice) == pytest.approx(graph.objective(choice), abs=1e-9 * DEAR)
    assert sum(map(np.min, moved.arrays)) >= sum(map(np.min, graph.arrays)) - 1e-9 * DEAR
