"""The relaxation of operators' strategies next to the integer program: its cost, its time, and how sure it is.

    python benchmarks/operator_relaxation.py [--json OUT] [--models NAME ...] [--meshes AxB ...] [--repeat N]

Whole train steps are sharded on logical meshes, all in this process. "whole" gives the solvers the cost graph as it is;
"core" what exact elimination leaves of it, as the engine does; "memory" the whole graph with limits on the bytes alive
at each product, between the least that there could be and what the cheapest choices take. `relaxed` is by which share
of the whole graph's optimum the relaxation's choices are dearer than the integer program's; `gap` is what the
relaxation says of itself by its lower bound. `joint` is the engine's exact bucket elimination, which takes no limits,
where its tables aren't too large. Seconds are the median of some runs, wall time of this machine; those of the
elimination that makes the core are not in the others.

Exit status 1 if a lower bound is above the optimum anywhere, or anything is cheaper than it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tqdm import tqdm

from _operator_graphs import MESHES, MODELS, case_of
from alpa_dejavu.sharding._blocks import Blocks
from alpa_dejavu.sharding._eliminate import reduce_graph
from alpa_dejavu.sharding._graph import CostGraph
from alpa_dejavu.sharding._ilp import MemoryRow, solve_ilp
from alpa_dejavu.sharding._joint import JointCosts
from alpa_dejavu.sharding.experimental import solve_relaxed
from harness import Results, Table, at_least, options, timed

Row = dict[str, Any]
Result = TypeVar("Result")
SAME = 1e-6
"""A relative difference that HiGHS's tolerances explain."""
LIMITED, BUDGET = ("mlp", "unet"), 0.8
"""Models whose graphs get limits, too, and where between the two."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Solves all and shows them."""
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS), help="these alone")
    parser.add_argument("--meshes", nargs="+", type=_mesh, default=list(MESHES), metavar="AxB", help="these alone")
    parser.add_argument("--repeat", type=at_least(1), default=3, help="runs of each (default: %(default)s)")
    given = parser.parse_args(arguments)
    cases = [(model, mesh) for model in given.models for mesh in given.meshes]
    rows: list[Row] = []
    for model, mesh in tqdm(cases, unit="graph"):
        rows += _rows(model, mesh, given.repeat)
    Results(given.json, rows=rows).shown(Table.of(rows, COLUMNS))
    return 0 if all(row["sound"] for row in rows) else 1


def _mesh(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    if not (rows.isdecimal() and columns.isdecimal()):
        raise argparse.ArgumentTypeError(f"a mesh is {text!r}, but must be given like 2x4")
    return int(rows), int(columns)


def _rows(model: str, mesh: tuple[int, int], repeat: int) -> list[Row]:
    """The same graph whole, eliminated, and with a memory limit."""
    case = case_of(model, mesh)
    reduce_s, reduced = timed(lambda: reduce_graph(case.graph, Blocks()), repeat, math.inf)
    cheapest = solve_ilp(case.graph)
    optimum = case.graph.objective(cheapest)
    rows = [
        {"graph": "whole", "eliminate_s": 0.0, **_compared(case.graph, (), optimum, repeat)},
        {"graph": "core", "eliminate_s": reduce_s, **_compared(reduced.core, (), optimum, repeat)},
    ]
    if model in LIMITED:
        taken = [row for row, _ in case.limits(1.0)]
        least = max(sum(float(sizes.min()) for sizes in row.values()) for row in taken)
        most = max(sum(float(sizes[cheapest[node]]) for node, sizes in row.items()) for row in taken)
        limits = case.limits(least + BUDGET * (most - least))
        rows.append({"graph": "memory", "eliminate_s": 0.0, **_compared(case.graph, limits, optimum, repeat)})
    return [{"model": model, "mesh": f"{mesh[0]}x{mesh[1]}", **row} for row in rows]


def _compared(graph: CostGraph, limits: tuple[MemoryRow, ...], unit: float, repeat: int) -> Row:
    """Both solvers on a graph; differences in cost are shares of `unit`."""
    row: Row = {
        "nodes": len(graph.costs), "edges": len(graph.edges), "choices": sum(map(len, graph.costs.values())),
        "limits": len(limits), "ilp_s": 0.0, "relaxed_s": 0.0, "sound": True,
    }  # fmt: skip
    if not graph.costs:
        return row
    row["ilp_s"], exact = timed(lambda: _or_none(lambda: solve_ilp(graph, limits)), repeat, math.inf)
    row["relaxed_s"], relaxed = timed(lambda: _or_none(lambda: solve_relaxed(graph, limits)), repeat, math.inf)
    if exact is None or relaxed is None:
        row["relaxed"] = "none is found" if relaxed is None else "found"
        row["sound"] = exact is not None or relaxed is None
        return row
    optimum = graph.objective(exact)
    row["joint_s"], joint = timed(lambda: None if limits else _or_none(lambda: _joint(graph)), repeat, math.inf)
    row["joint"] = None if joint is None else (joint - optimum) / unit
    row |= {"relaxed": (relaxed.cost - optimum) / unit, "gap": relaxed.slack / unit}
    row["sound"] = max(relaxed.lower_bound - optimum, optimum - relaxed.cost) <= SAME * abs(unit)
    return row


def _joint(graph: CostGraph) -> float:
    joint = JointCosts(graph, {})
    return graph.objective(joint.complete(joint.cheapest([])[1]))


def _or_none(call: Callable[[], Result]) -> Result | None:
    try:
        return call()
    except ValueError:
        return None


def _share(name: str) -> Callable[[Row], object]:
    return lambda row: f"{row[name]:+.2%}" if isinstance(row[name], float) else row[name]


COLUMNS: dict[str, str | Callable[[Row], object]] = {
    **{name: f"{{{name}}}" for name in ("model", "mesh", "graph", "nodes", "edges", "choices", "limits")},
    **{name.replace("_", " "): f"{{{name}:.3f}}" for name in ("eliminate_s", "ilp_s", "relaxed_s")},
    "ILP / relaxed": lambda row: f"{row['ilp_s'] / row['relaxed_s']:.2f}x" if row["relaxed_s"] else "",
    "joint s": "{joint_s:.3f}",
    **{name: _share(name) for name in ("relaxed", "gap")},
    "sound": "{sound}",
}


if __name__ == "__main__":
    raise SystemExit(main())
