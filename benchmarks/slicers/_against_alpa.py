"""How much faster `dynamic` is than Alpa's programs, with everything compiled beforehand."""

from __future__ import annotations

import functools
from typing import Any

from tqdm import tqdm

from alpa_dejavu._util.units import seconds
from alpa_dejavu.slicing import slicer
from harness import Figure, timed
from slicers._alone import cold_s
from slicers._alpa import FIRST, SECOND, Solved, solve, solve_within, warm
from slicers._figure import Part, Scale
from slicers._problems import sized

AIMS = {"16/64": (100.0, 10.0), "32/64": (300.0, 30.0), "48/128": (1000.0, 100.0)}
"""By layers and devices, how many times faster than the first program and the second."""
_OURS = ("dynamic", "uniform", "amp_pipe", "mcmc", "gradient")


def measured(scale: Scale) -> Part:
    """The same problems for all; the first program runs beside this process, so that it can be stopped."""
    figures, rows = [], []
    dynamic = slicer("dynamic")
    for name in tqdm(scale.against_alpa, "against alpa"):
        problem = sized(name)
        dynamic.slice(problem)
        ours_s, ours = timed(functools.partial(dynamic.slice, problem))
        warm(SECOND, problem)
        second_s, second = timed(functools.partial(solve, SECOND, problem), repeats=3)
        first = solve_within(scale.patience_s, FIRST, problem)
        aims = AIMS.get(name, (1.0, 1.0))
        figures.append(_faster(name, FIRST, aims[0], ours_s, scale.patience_s if first is None else first.seconds))
        figures.append(_faster(name, SECOND, aims[1], ours_s, second_s))
        row = {"problem": name, "dynamic_s": ours_s, "optimum_s": ours.cost_s, "rounds": ours.iterations}
        rows.append(row | _of(FIRST, first, ours.cost_s) | _of(SECOND, second, ours.cost_s) | {f"{SECOND}_s": second_s})
    cold = {name: cold_s(name, scale.against_alpa[0]) for name in tqdm((*_OURS, SECOND), "cold")}
    return Part(tuple(figures), {"sizes": rows, "cold_s": cold, "cold_problem": scale.against_alpa[0]})


def _faster(name: str, peer: str, aim: float, ours_s: float, theirs_s: float) -> Figure:
    factor = theirs_s / ours_s
    said = f"{factor:,.0f}x: {seconds(ours_s)} against {seconds(theirs_s)}"
    return Figure("dynamic", f"{name} against {peer}", f"{aim:,.0f}x faster", said, factor >= aim)


def _of(peer: str, solved: Solved | None, optimum_s: float) -> dict[str, Any]:
    if solved is None:
        return {f"{peer}_s": None}
    excess = solved.cost_s / optimum_s - 1
    return {f"{peer}_s": solved.seconds, f"{peer}_warm_s": solved.warm_s, f"{peer}_excess": excess}
