"""Elimination, the integer program and the relaxation next to trying out every choice of a cost graph."""

import itertools

import numpy as np
import pytest

from alpa_dejavu.sharding import LogicalMesh, ShardingOptions, _solve, boundary_solve, solve
from alpa_dejavu.sharding._blocks import Blocks
from alpa_dejavu.sharding._eliminate import solve_by_elimination
from alpa_dejavu.sharding._graph import CostGraph
from alpa_dejavu.sharding._ilp import solve_ilp
from alpa_dejavu.sharding._solve import NamedSolver
from alpa_dejavu.sharding.experimental import solve_relaxed
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
