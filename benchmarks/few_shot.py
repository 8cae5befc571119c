"""The error on a GPU that was never seen, against the number of its kernels that are measured.

    python benchmarks/few_shot.py --train ../shared/data --json OUT [--plots DIR] [--seeds N]

Each GPU of the NeuSight kernels in turn is left out of the fit. Of half of its kernels 0, 10, 30, 100 and 300 are
measured, chosen by `measure_next` (the rule of calibration) or at random (the mean over several seeds); the fitted
model is adapted by them, and predicts the other half. Figures are fractions (0.08 is 8 %).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tqdm import tqdm

from alpa_dejavu.costs.latency.learned import (
    AdaptedKernels,
    Deviations,
    KernelModel,
    Kernels,
    data_sheets,
    measure_next,
)
from harness import Results, Table, at_least, options, wrong_input_told
from trials import _score, kernels
from trials._folder import Folder
from trials._trial_set import MEASURED_S, Predicted

COUNTS = (0, 10, 30, 100, 300)
WAYS = ("rule", "random")
SEEDS = 5
FIGURES = ("median_ape", "mape", "coverage_90", "width_90")
_SHEETS = "neusight-kernels/gpus.json"


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Left:
    """A GPU that was left out: what is known without it, and its kernels in two halves."""

    model: KernelModel
    deviations: Deviations
    pool: Kernels
    pool_s: NDArray[np.float64]
    held: Kernels
    held_s: NDArray[np.float64]

    def figures(self, chosen: NDArray[np.int64]) -> dict[str, float]:
        """Of the half that is held back, the kernels chosen from the other one being measured."""
        adapted = AdaptedKernels(self.deviations).fit(self.model, self.pool.take(chosen), self.pool_s[chosen])
        found = adapted.predict(self.held)
        predicted = Predicted(found.mean, found.lower, found.upper)
        figures = _score.figures(self.held_s, predicted, pd.Series(["one"] * len(self.held)))
        return {name: float(figures[name]) for name in FIGURES}


def left_out(rows: pd.DataFrame, sheets: Any, gpu: str) -> Left:
    """Fits to all other GPUs."""
    others = rows[rows["gpu"] != gpu]
    seen, seconds = Kernels.of(others, sheets), others[MEASURED_S].to_numpy(float)
    model = KernelModel().fit(seen, seconds)
    deviations = Deviations.fit(model, seen, model.left_out_errors)
    own = rows[rows["gpu"] == gpu]
    order = np.random.default_rng(0).permutation(len(own))
    halves = [own.iloc[order[start::2]] for start in (0, 1)]
    parts = [(Kernels.of(half, sheets), half[MEASURED_S].to_numpy(float)) for half in halves]
    return Left(model, deviations, *parts[0], *parts[1])


def curve(left: Left, counts: Sequence[int], seeds: int) -> dict[str, Any]:
    """Figures by way of choosing and number of kernels."""
    by_rule = measure_next(left.deviations, left.model, left.pool, max(counts))
    orders = [np.random.default_rng(seed).permutation(len(left.pool)) for seed in range(seeds)]
    random = [{str(count): left.figures(order[:count]) for count in counts} for order in orders]
    return {
        "rule": {str(count): left.figures(by_rule[:count]) for count in counts},
        "random": {str(count): _mean([each[str(count)] for each in random]) for count in counts},
        "random_seeds": random,
        "measured_from": len(left.pool),
        "scored": len(left.held),
        "deviations": dataclasses.asdict(left.deviations),
    }


def run(train: Path, counts: Sequence[int] = COUNTS, seeds: int = SEEDS) -> dict[str, Any]:
    """The curves of all GPUs that there are rows of, and their mean.

    Raises:
        ValueError: there are fewer than three GPUs.
        AbsentError: there are no kernels.
        UnreadableError: a file is broken.
    """
    folder = Folder(train)
    sheets, rows = data_sheets(folder.document(_SHEETS)), kernels.load(folder)
    gpus = sorted(rows["gpu"].unique())
    if len(gpus) < 3:
        raise ValueError(f"{train}: there are kernels of {gpus} alone; a GPU can be left out of three or more")
    curves = {}
    for gpu in tqdm(gpus, desc="GPUs"):
        started = time.perf_counter()
        curves[gpu] = curve(left_out(rows, sheets, gpu), counts, seeds)
        curves[gpu]["seconds"] = time.perf_counter() - started
    mean = {
        way: {str(count): _mean([each[way][str(count)] for each in curves.values()]) for count in counts}
        for way in WAYS
    }
    return {"counts": list(counts), "seeds": seeds, "gpus": curves, "mean": mean}


def draw(folder: Path, result: dict[str, Any]) -> Path:
    """The curves as a page: a line for each GPU and way of choosing."""
    import plotly.graph_objects as go

    folder.mkdir(parents=True, exist_ok=True)
    figure = go.Figure()
    for name, curves in [*result["gpus"].items(), ("mean", result["mean"])]:
        for way in WAYS:
            errors = [100 * curves[way][str(count)]["mape"] for count in result["counts"]]
            dash = "solid" if way == "rule" else "dot"
            line = {"dash": dash, "width": 4 if name == "mean" else 2}
            figure.add_scatter(x=[str(n) for n in result["counts"]], y=errors, name=f"{name}, {way}", line=line)
    figure.update_layout(
        title="The error on a GPU that was never seen",
        xaxis={"title": "of its kernels measured", "type": "category"},
        yaxis={"title": "MAPE, %", "rangemode": "tozero"},
    )
    path = folder / "few_shot.html"
    figure.write_html(path, include_plotlyjs="directory")
    return path


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the curves; returns 2 where an input is wrong, with what and where on stderr."""
    parser = options(__doc__, needs_json=True)
    parser.add_argument("--train", type=Path, required=True, help="the folder of measurements")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="a folder for a picture")
    parser.add_argument("--seeds", type=at_least(1), default=SEEDS, help="how many random choices are averaged")
    given = parser.parse_args(arguments)
    result = run(given.train, COUNTS, given.seeds)
    if given.plots is not None:
        draw(given.plots, result)
    curves = [*result["gpus"].items(), ("mean", result["mean"])]
    rows = [{"GPU": name, "chosen": way, "by": each[way]} for name, each in curves for way in WAYS]
    cells = {f"{count} measured": lambda row, count=str(count): _cell(row["by"][count]) for count in result["counts"]}
    said = "in %: median error / mean error / share of the half held back that is inside its 90 % interval"
    table = Table.of(rows, {"GPU, chosen by": "{GPU}, {chosen}", **cells})
    return Results(given.json, **result).shown(table, said)


def _mean(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([each[name] for each in figures])) for name in FIGURES}


def _cell(figures: dict[str, float]) -> str:
    median, mean, inside = (100 * figures[name] for name in ("median_ape", "mape", "coverage_90"))
    return f"{median:.1f} / {mean:.1f} / {inside:.0f}"


if __name__ == "__main__":
    raise SystemExit(main())
