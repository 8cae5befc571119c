"""`gradient` on the DP's own objective, from random starts, before and after its polish.

Beside it stands what the anneal is worth: the same starts after a single round of it, drawn from and polished alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from tqdm import tqdm

from alpa_dejavu._util.units import seconds
from alpa_dejavu.problem import SlicingProblem
from alpa_dejavu.slicing import Gradient, slicer
from harness import Figure, timed
from slicers._figure import Part, Scale
from slicers._problems import by_work, powers, sized

SHAPES = ((8, 8), (16, 16), (24, 32), (32, 64))
"""Layers and devices; few, so that few programs are compiled."""
CLOSE, CLOSE_ON = 0.01, 0.95
FARTHEST = 0.05
CLOSE_BEFORE, CLOSE_BEFORE_ON = 0.05, 0.8
SLOWER = 10.0


def measured(scale: Scale) -> Part:
    """By how much its plans are above the optimum, which only this benchmark knows; and its time on a large problem."""
    rows = [_row(name, problem) for name, problem in tqdm(problems(scale.relaxed), "gradient", scale.relaxed)]
    figures = list(_gaps(rows))
    large = sized(scale.large)
    exact, ours = slicer("dynamic"), Gradient()
    _, found = timed(lambda: ours.slice(large), repeats=1)
    optimum = exact.slice(large).cost_s
    exact_s, ours_s = timed(lambda: exact.slice(large))[0], timed(lambda: ours.slice(large))[0]
    gap = found.cost_s / optimum - 1
    said = f"{ours_s / exact_s:.3g}x: {seconds(ours_s)} against {seconds(exact_s)}; {100 * gap:.2g} % above the optimum"
    aim, held = f"no slower than {SLOWER:g}x dynamic", ours_s <= SLOWER * exact_s
    figures.append(Figure("gradient", scale.large, aim, said, held))
    timings = {"gradient_s": ours_s, "dynamic_s": exact_s, "gap": gap, "certificate": found.gap}
    return Part(tuple(figures), {"problems": rows, scale.large: timings})


def problems(count: int) -> Iterator[tuple[str, SlicingProblem]]:
    """So many, from 8 layers on 8 devices to 32 on 64, with more or less even layers and orderly tables."""
    for seed in range(count):
        rng = np.random.default_rng(1000 + seed)
        layers, devices = SHAPES[seed % len(SHAPES)]
        size, uneven = int(2 ** rng.integers(2, 9)), float(rng.uniform(0.0, 0.8))
        noise = float(rng.choice([0.0, 0.05, 0.3]))
        name = f"{layers}/{devices}, {size} micro-batches, {seed}"
        yield name, by_work(rng, layers, devices, powers(devices), size, uneven=uneven, noise=noise)


def _row(name: str, problem: SlicingProblem) -> dict[str, Any]:
    # The exact slicer comes last: nothing of it can be of use to the other.
    after, before = Gradient().slice(problem), Gradient(polish=False).slice(problem)
    unannealed = Gradient(rounds=1).slice(problem)
    optimum = slicer("dynamic").slice(problem)
    gaps = (found.cost_s / optimum.cost_s - 1 for found in (before, after, unannealed))
    row = dict(zip(("before", "after", "unannealed"), gaps, strict=True))
    return {"problem": name, **row, "certificate": after.gap, "seconds": after.seconds, "dynamic_s": optimum.seconds}


def _gaps(rows: list[dict[str, Any]]) -> Iterator[Figure]:
    before, after, unannealed = (np.array([row[name] for row in rows]) for name in ("before", "after", "unannealed"))
    on = f"{len(rows)} problems"
    near, near_before = (after <= CLOSE).mean(), (before <= CLOSE_BEFORE).mean()
    beside = f"polished after a single round on {100 * (unannealed <= CLOSE).mean():.1f} %"
    said = f"on {100 * near:.1f} %; median {100 * np.median(after):.2g} %; {beside}"
    aim = f"within {100 * CLOSE:g} % of the optimum on {100 * CLOSE_ON:g} %"
    yield Figure("gradient", f"{on}, polished", aim, said, bool(near >= CLOSE_ON))
    most = after.max()
    said = f"{100 * most:.2g} % at most; after a single round {100 * unannealed.max():.2g} %"
    yield Figure("gradient", f"{on}, polished", f"never over {100 * FARTHEST:g} %", said, bool(most <= FARTHEST))
    said = f"on {100 * near_before:.1f} %; median {100 * np.median(before):.2g} %, {100 * before.max():.2g} % at most"
    aim = f"within {100 * CLOSE_BEFORE:g} % on {100 * CLOSE_BEFORE_ON:g} %"
    yield Figure("gradient", f"{on}, before the polish", aim, said, bool(near_before >= CLOSE_BEFORE_ON))
