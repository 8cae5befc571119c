"""A cost graph as an integer linear program, solved to its optimum by HiGHS; and its limits on memory."""

from collections.abc import Sequence

import highspy
import numpy as np

from alpa_dejavu.sharding._graph import CostGraph
from alpa_dejavu.sharding._operator import ProgramOperator
from alpa_dejavu.sharding._options import INFINITY_COST
from alpa_dejavu.sharding._strategies import SitedOperator

MemoryRow = tuple[dict[int, np.ndarray], float]
"""Bytes of each node's choices, and how many they may add up to."""
_TOLERANCE = 1e-6


def solve_ilp(graph: CostGraph, memory: tuple[MemoryRow, ...] = ()) -> dict[int, int]:
    """Returns the cheapest choice for each node of a cost graph, by an integer linear program.

    One binary variable stands for each choice of a node, one continuous variable for each pair of choices of an edge's
    two nodes; those of the pairs that contain a choice add up to the choice's variable. The linear relaxation is solved
    first, and its optimum is mostly whole; else HiGHS branches. Choices that cost INFINITY_COST or more are left out at
    first, and only allowed where there is no solution without them.

    Raises:
        ValueError: if no choice meets the memory limits.

    References:
        Section 4.2, equation (1), of the Alpa paper (OSDI 2022), with its products of variables made linear.
    """
    finite = max((float(np.abs(a[np.abs(a) < INFINITY_COST]).sum()) for a in graph.arrays), default=0.0) + 1.0
    for dear in (None, finite * (len(graph.costs) + len(graph.edges))):
        choice = _solve(graph, memory, dear)
        if choice is not None:
            return choice
    raise ValueError(
        "no sharding meets the memory budget per device: raise the budget, use more devices, or allow more "
        "micro-batches"
    )


class _Columns:
    """The variables and constraints of one program, gathered before they are handed over."""

    def __init__(self) -> None:
        self.cost: list[np.ndarray] = []
        self.upper: list[np.ndarray] = []
        self.count = 0
        self.rows: list[tuple[np.ndarray, np.ndarray, float, float]] = []

    def add(self, cost: np.ndarray, dear: float | None) -> np.ndarray:
        """Adds a variable between 0 and 1 for each cost of an array, and returns their indices.

        Variables that cost INFINITY_COST or more are fixed at 0 if `dear` is None. Else they cost `dear`, and only
        those of infinite cost are fixed at 0.
        """
        flat = cost.reshape(-1)
        banned = ~np.isfinite(flat) if dear is not None else flat >= INFINITY_COST
        if dear is not None:
            flat = np.where(flat >= INFINITY_COST, dear, flat)
        self.cost.append(np.where(banned, 0.0, flat))
        self.upper.append(np.where(banned, 0.0, 1.0))
        start, self.count = self.count, self.count + flat.size
        return np.arange(start, self.count).reshape(cost.shape)

    def row(self, index: np.ndarray, value: np.ndarray, lower: float, upper: float) -> None:
        """Adds a constraint: `value` times the variables at `index` sums to lower..upper."""
        self.rows.append((index.astype(np.int32), value, lower, upper))


def _solve(graph: CostGraph, memory: tuple[MemoryRow, ...], dear: float | None) -> dict[int, int] | None:
    columns = _Columns()
    variables = {node: columns.add(cost, dear) for node, cost in graph.costs.items()}
    integers = columns.count
    for index in variables.values():
        columns.row(index, np.ones(len(index)), 1.0, 1.0)
    for (a, b), matrix in graph.edges.items():
        pair = columns.add(matrix, dear)
        for i, variable in enumerate(variables[a]):
            columns.row(np.append(pair[i], variable), np.append(np.ones(pair.shape[1]), -1.0), 0.0, 0.0)
        for j, variable in enumerate(variables[b]):
            columns.row(np.append(pair[:, j], variable), np.append(np.ones(pair.shape[0]), -1.0), 0.0, 0.0)
    for bytes_of, limit in memory:
        index = np.concatenate([variables[node] for node in bytes_of])
        columns.row(index, np.concatenate(list(bytes_of.values())) / limit, -highspy.kHighsInf, 1.0)
    values = _run(columns, 0)
    if values is not None and (np.abs(values[:integers] - np.rint(values[:integers])) >= _TOLERANCE).any():
        values = _run(columns, integers)
    if values is None:
        return None
    return {node: int(np.argmax(values[index])) for node, index in variables.items()}


def _run(columns: _Columns, integers: int) -> np.ndarray | None:
    """Returns the optimum with the first so many variables integer; None if there is no solution.

    HiGHS's presolve is left out: programs of this kind have little to remove, and it takes longer than the rest.
    """
    cost = np.concatenate(columns.cost)
    scale = max(float(np.abs(cost).max()), 1e-9) / 1e4
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = columns.count, len(columns.rows)
    lp.col_cost_ = cost / scale
    lp.col_lower_ = np.zeros(columns.count)
    lp.col_upper_ = np.concatenate(columns.upper)
    lp.row_lower_ = np.array([row[2] for row in columns.rows])
    lp.row_upper_ = np.array([row[3] for row in columns.rows])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum([len(row[0]) for row in columns.rows])]).astype(np.int32)
    lp.a_matrix_.index_ = np.concatenate([row[0] for row in columns.rows])
    lp.a_matrix_.value_ = np.concatenate([row[1] for row in columns.rows])
    if integers:
        kinds = [highspy.HighsVarType.kInteger] * integers
        lp.integrality_ = kinds + [highspy.HighsVarType.kContinuous] * (columns.count - integers)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("presolve", "off")
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", 1e-6)
    solver.passModel(lp)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return np.array(solver.getSolution().col_value)


_NO_MEMORY = ("identity", "output")


def memory_rows(
    operators: Sequence[ProgramOperator], sited: Sequence[SitedOperator], roots: Sequence[int], budget: float
) -> tuple[MemoryRow, ...]:
    """Returns a memory limit for the moment of each matrix product and convolution: all live results fit a budget, in
    bytes of one device. A result is live from its operator to its last reader, a parameter until the end.
    """
    last = list(range(len(operators)))
    for index, operator in enumerate(operators):
        for operand in operator.operands:
            last[operand] = index
    for index, operator in enumerate(operators):
        if operator.kind in ("parameter", "output"):
            last[index] = len(operators)
    rows: list[MemoryRow] = []
    alive: dict[int, np.ndarray] = {}
    ends: dict[int, list[int]] = {}
    for index, operator in enumerate(operators):
        if operator.kind not in _NO_MEMORY:
            root = roots[index]
            alive[root] = alive.get(root, 0.0) + sited[index].table.memory[sited[index].remap]
            ends.setdefault(last[index], []).append(index)
        if operator.kind in ("dot", "convolution"):
            rows.append((dict(alive), budget))
        for gone in ends.pop(index, []):
            root = roots[gone]
            alive[root] = alive[root] - sited[gone].table.memory[sited[gone].remap]
    return tuple(rows)
