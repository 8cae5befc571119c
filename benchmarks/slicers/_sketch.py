"""The problem of the project's first sketch, by its own program and by the two slicers that are exact on it."""

from __future__ import annotations

import functools
from typing import Any

from tqdm import tqdm

from alpa_dejavu._util.units import seconds
from alpa_dejavu.slicing import slicer
from harness import Figure, timed
from slicers._figure import Part, Scale
from slicers._pipe_dp import as_slicing, cost, drawn, on_unlike_hosts, pipe_dp_within, starts_of

AIM = 100.0
EXACT = ("dynamic", "amp_pipe")


def measured(scale: Scale) -> Part:
    """Each number of layers and stages; where the sketch's program is stopped, its patience is a bound."""
    rows = [_row(*size, scale.sketch_patience_s) for size in tqdm(scale.sketch, "sketch")]
    return Part(tuple(_figure(row) for row in rows), {"sizes": rows})


def _figure(row: dict[str, Any]) -> Figure:
    """By the slicer that is faster: both are exact here."""
    name = min(EXACT, key=lambda name: float(row[f"{name}_s"]))
    (other,) = (each for each in EXACT if each != name)
    stopped = row["pipe_dp_cost"] is None
    costs = {row[f"{each}_cost"] for each in EXACT} | ({row["pipe_dp_cost"]} if not stopped else set())
    factors = {each: row["pipe_dp_s"] / row[f"{each}_s"] for each in EXACT}
    said = f"{factors[name]:,.0f}x: {seconds(row[f'{name}_s'])} against {seconds(row['pipe_dp_s'])}"
    said += f"{' (stopped)' if stopped else ''}; {'same cost' if len(costs) == 1 else f'costs {sorted(costs)}'}"
    said += f"; {other} {factors[other]:,.0f}x"
    what = f"the sketch's ({row['layers']}, {row['stages']})"
    return Figure(name, what, f"same cost, {AIM:g}x faster", said, len(costs) == 1 and factors[name] >= AIM)


def _row(num_layers: int, num_stages: int, patience_s: float) -> dict[str, Any]:
    layers_s, cuts_s = drawn(num_layers, num_stages)
    given = layers_s, cuts_s, num_stages
    row: dict[str, Any] = {"layers": num_layers, "stages": num_stages}
    for name, problem in (("dynamic", as_slicing(*given)), ("amp_pipe", on_unlike_hosts(*given))):
        found = slicer(name).slice(problem)
        row[f"{name}_s"] = timed(functools.partial(slicer(name).slice, problem))[0]
        row[f"{name}_cost"] = cost(layers_s, cuts_s, starts_of(found.stages))
    theirs = pipe_dp_within(patience_s, *given)
    row["pipe_dp_s"] = patience_s if theirs is None else theirs[0]
    row["pipe_dp_cost"] = None if theirs is None else cost(layers_s, cuts_s, theirs[1])
    return row
