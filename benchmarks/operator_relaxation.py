"""The relaxation of operators' strategies next to the integer program: its cost, its time, and how sure it is.

    python benchmarks/operator_relaxation.py [--json OUT] [--models NAME ...] [--meshes AxB ...] [--repeat N]

Whole train steps are sharded on logical meshes, all in this process. "whole" gives the solvers the cost graph as it is;
"core" what exact elimination leaves of it, as the engine does; "memory" the whole graph with limits on the bytes alive
at each product, between the least that there could be and what the cheapest choices take. `rounded` are the largest
shares of the relaxation by itself, annealed once; `polished` the same after each node's best choice given its
neighbours'; `relaxed` is what the solver gives, with costs moved before, and forests and mixtures after. All are by
which share of the whole graph's optimum they are dearer than the integer program's; `gap` is what the relaxation says
of itself by its lower bound. `joint` is the engine's exact bucket elimination, which takes no limits, where its tables
aren't too large. Seconds are the median of some runs, wall time of this machine; those of the elimination that makes
the core are not in the others.

Exit status 1 if a lower bound is above the optimum anywhere, or anything is cheaper than it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import highspy
import numpy as np
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from _operator_graphs import MESHES, MODELS, case_of
from _timing import machine, timed
from alpa_dejavu.sharding._anneal import annealed
from alpa_dejavu.sharding._blocks import Blocks
from alpa_dejavu.sharding._dual import Dual
from alpa_dejavu.sharding._eliminate import reduce_graph
from alpa_dejavu.sharding._graph import CostGraph
from alpa_dejavu.sharding._ilp import MemoryRow, solve_ilp
from alpa_dejavu.sharding._joint import JointCosts
from alpa_dejavu.sharding._padded import IntArray, Padded
from alpa_dejavu.sharding._relaxed import CEILINGS, ceiling_of, solve_relaxed
from alpa_dejavu.sharding._settle import settled

Row = dict[str, object]
Result = TypeVar("Result")
SAME = 1e-6
"""A relative difference that HiGHS's tolerances explain."""
LIMITED, BUDGET = ("mlp", "unet"), 0.8
"""Models whose graphs get limits, too, and where between the two."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Solves all and shows them."""
    given = _parsed(arguments)
    cases = [(model, mesh) for model in given.models for mesh in given.meshes]
    rows: list[Row] = []
    for model, mesh in tqdm(cases, unit="graph"):
        rows += _rows(model, mesh, given.repeat)
    _show(rows)
    if given.json is not None:
        heading = {"version": 1, **machine(), "highs": highspy.Highs().version()}
        given.json.write_text(json.dumps({**heading, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["sound"] for row in rows) else 1


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results here, too")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS), help="these alone")
    parser.add_argument("--meshes", nargs="+", type=_mesh, default=list(MESHES), metavar="AxB", help="these alone")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each (default: %(default)s)")
    return parser.parse_args(arguments)


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
    row["relaxed_s"], found = timed(lambda: _or_none(lambda: solve_relaxed(graph, limits)), repeat, math.inf)
    if exact is None or found is None:
        row["relaxed"] = "none is found" if found is None else "found"
        row["sound"] = exact is not None or found is None
        return row
    optimum, padded = graph.objective(exact), Padded.of(graph, limits)
    row["joint_s"], joint = timed(lambda: None if limits else _or_none(lambda: _joint(graph)), repeat, math.inf)
    row["joint"] = None if joint is None else (joint - optimum) / unit
    moved = Dual(padded).moved()
    shares, _ = annealed(padded, moved, ceiling_of(padded, moved, CEILINGS[0]), 0)
    found_so = {"rounded": shares.argmax(axis=1), "polished": settled(padded, shares)}
    costs = {name: _least(graph, padded, choices) for name, choices in found_so.items()} | {"relaxed": found.cost}
    row |= {name: "not allowed" if cost is None else (cost - optimum) / unit for name, cost in costs.items()}
    row["gap"] = found.slack / unit
    above, below = found.lower_bound - optimum, optimum - found.cost
    row["sound"] = max(above, below) <= SAME * abs(unit)
    return row


def _least(graph: CostGraph, padded: Padded, choices: IntArray) -> float | None:
    """The cost of the cheapest of some choices; None if they are forbidden or beyond a limit."""
    best = choices[:, [int(padded.totals(choices).argmin())]]
    cost = graph.objective(dict(zip(padded.nodes, best[:, 0].tolist(), strict=True)))
    return cost if np.isfinite(cost) and not padded.penalty(padded.used(best))[0] else None


def _joint(graph: CostGraph) -> float:
    joint = JointCosts(graph, {})
    return graph.objective(joint.complete(joint.cheapest([])[1]))


def _or_none(call: Callable[[], Result]) -> Result | None:
    try:
        return call()
    except ValueError:
        return None


def _show(rows: list[Row]) -> None:
    columns = "model", "mesh", "graph", "nodes", "edges", "choices", "limits"
    seconds, shares = ("eliminate_s", "ilp_s", "relaxed_s"), ("rounded", "polished", "relaxed", "gap")
    times = *(name.replace("_", " ") for name in seconds), "ILP / relaxed", "joint s"
    table = Table(*columns, *times, *shares, "sound")
    for row in rows:
        ilp_s, relaxed_s = float(str(row["ilp_s"])), float(str(row["relaxed_s"]))
        table.add_row(
            *(str(row[name]) for name in columns),
            *(f"{float(str(row[name])):.3f}" for name in seconds),
            f"{ilp_s / relaxed_s:.2f}x" if relaxed_s else "",
            "" if row.get("joint") is None else f"{row['joint_s']:.3f}",
            *(_share(row.get(name, "")) for name in shares),
            "yes" if row["sound"] else "NO",
        )
    Console(width=220).print(table)


def _share(value: object) -> str:
    return f"{value:+.2%}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    raise SystemExit(main())
