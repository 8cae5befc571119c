"""Operators and a mesh in, shardings and their cost out."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import final

from alpa_dejavu.sharding._blocks import Blocks
from alpa_dejavu.sharding._eliminate import solve_by_elimination
from alpa_dejavu.sharding._facts import Facts
from alpa_dejavu.sharding._graph import CostGraph, build_graph, roots_of
from alpa_dejavu.sharding._ilp import MemoryRow, memory_rows, solve_ilp
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._operator import ProgramOperator, check_operators
from alpa_dejavu.sharding._options import INFINITY_COST, ShardingOptions
from alpa_dejavu.sharding._planning import ShardingStrategy
from alpa_dejavu.sharding._reduce_scatter import Recut, find_reduce_scatters
from alpa_dejavu.sharding._spec import Spec
from alpa_dejavu.sharding._strategies import SitedOperators, relaxed
from alpa_dejavu.sharding.experimental import solve_relaxed

logger = logging.getLogger(__name__)


@final
class NamedSolver:
    """A solver of the engine's cost graphs by its name: "ilp" is exact, "relaxed" is a relaxation.

    It is called with a graph, each of whose nodes needs a choice, and with memory limits. Where "relaxed" finds no
    choices, or only ones that cost INFINITY_COST or more, an integer linear program is solved instead. `slack` is the
    most by which the best choices for the last graph can be cheaper than those returned; 0 if exact.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.slack = 0.0

    def __call__(self, graph: CostGraph, memory: Sequence[MemoryRow] = ()) -> dict[int, int]:
        """Returns the number of the choice for each node.

        Raises:
            ValueError: no choices meet the memory limits.
        """
        self.slack = 0.0
        if self._name == "relaxed":
            try:
                relaxed = solve_relaxed(graph, memory)
            except ValueError as error:
                logger.info("The integer program is asked: %s.", error)
            else:
                if relaxed.cost < INFINITY_COST:
                    self.slack = relaxed.slack
                    return relaxed.choice
        return solve_ilp(graph, tuple(memory))


@dataclasses.dataclass(frozen=True)
class Solution:
    """A solution of the sharding problem: the strategy by which each operator is computed on the mesh.

    Attributes:
        strategies: the chosen strategy of each operator.
        choices: the index of each chosen strategy among its operator's strategies.
        objective: the cost of all chosen strategies, and of the resharding between them.
        lower_bound: no choices cost less; the objective itself where the solver is exact.
        batch_dims: the batch dimension that each operator was found to have, or None.
        recut: the results that are cut otherwise than their strategies say, so that all-reduces may become
            reduce-scatters; the objective doesn't count that.
    """

    strategies: tuple[ShardingStrategy, ...]
    choices: tuple[int, ...]
    objective: float
    lower_bound: float
    batch_dims: tuple[int | None, ...]
    recut: Recut

    @property
    def outputs(self) -> tuple[Spec, ...]:
        """Returns the mesh axes that cut each dimension of each operator's result."""
        return tuple(self.recut.specs.get(i, s.output) for i, s in enumerate(self.strategies))


def solve(operators: Sequence[ProgramOperator], mesh: LogicalMesh, options: ShardingOptions | None = None) -> Solution:
    """Chooses a sharding for each operator of a program such that the whole program costs least.

    Args:
        operators: the program, each operator after its operands.
        mesh: the logical mesh of the devices.
        options: the user's sharding options; None for the defaults.

    Raises:
        ValueError: if the operators are out of order, or nothing meets the memory budget.

    References:
        Section 4 of the Alpa paper (OSDI 2022).

    >>> x = ProgramOperator("parameter", (), (256, 8), 4)
    >>> w = ProgramOperator("parameter", (), (8, 1), 4)
    >>> from alpa_dejavu.sharding._operator import DotDims
    >>> y = ProgramOperator("dot", (0, 1), (256, 1), 4, attributes=DotDims((), (), (1,), (0,)))
    >>> solve([x, w, y], LogicalMesh((4, 1))).outputs
    (((0,), ()), ((), ()), ((0,), ()))
    """
    options = options or ShardingOptions()
    operators = tuple(operators)
    check_operators(operators)
    facts = Facts.of(operators)
    blocks = Blocks()
    store = SitedOperators(mesh, relaxed(facts, mesh, options), blocks)
    sited = store.of(facts)
    roots = roots_of(operators, sited)
    graph = build_graph(facts, sited, roots, blocks, store.costs)
    if options.memory_budget_per_device > 0:
        rows = memory_rows(operators, sited, roots, options.memory_budget_per_device)
        solver = NamedSolver(options.solver)
        choice, slack = solver(graph, rows), solver.slack
    else:
        choice, slack = _cheapest(graph, blocks, options.solver)
    chosen = tuple(int(entry.remap[choice[root]]) for entry, root in zip(sited, roots, strict=True))
    strategies = tuple(entry.table.strategies[i] for entry, i in zip(sited, chosen, strict=True))
    recut = Recut({}, (), ())
    if options.prefer_reduce_scatter:
        recut = find_reduce_scatters(facts, strategies, mesh.shape, options)
    objective = graph.objective(choice)
    return Solution(strategies, chosen, objective, objective - slack, tuple(facts.batch_dims), recut)


def _cheapest(graph: CostGraph, blocks: Blocks, name: str) -> tuple[dict[int, int], float]:
    """Returns the cheapest choice, looked for first among those that pay INFINITY_COST nowhere, which are far fewer;
    and by what the best one is cheaper, at most.
    """
    capped = graph.affordable(blocks)
    solver = NamedSolver(name)
    try:
        choice = solve_by_elimination(capped, solver, blocks)
    except ValueError:
        choice = {}
    if choice and capped.objective(choice) < INFINITY_COST:
        return choice, solver.slack
    solver = NamedSolver(name)
    return solve_by_elimination(graph, solver, blocks), solver.slack
