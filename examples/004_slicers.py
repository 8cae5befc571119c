"""All slicers on one problem: what each finds, how sure it is and how long it takes; and three pictures of that.

The problem is the cost table of a mixture of experts on four hosts of eight V100, by data sheets; no device is needed.
With --plots the pictures are written as SVG: how `gradient` anneals, costs over seconds, and seconds over the number of
layers, Alpa's own programs among them. `exhaustive` gets the model in a few layers only: it tries every plan there is.
"""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from alpa_dejavu.layers import trace
from alpa_dejavu.problem import SlicingProblem
from alpa_dejavu.slicing import Gradient, Mcmc
from demo.pictures import save
from demo.slicers import LAYERS, Answer, Solve, alpas, anneal, answers, costs_over_time, ours, question, runtimes

NAMES = ("dynamic", "gradient", "mcmc", "amp_pipe", "uniform")
SAMPLES, MICRO_BATCHES = 16, 64
"""In a micro-batch, and of them in a step."""


def main() -> int:
    """Shows a table, and writes the pictures if a folder is given."""
    arguments = _arguments()
    print(f"Tracing {arguments.model} ...")
    step = trace(arguments.model, batch=SAMPLES)

    def asked(num_layers: int) -> SlicingProblem:
        return question(step, num_layers, arguments.hosts, MICRO_BATCHES)

    problem = asked(arguments.layers)
    programs = {name: ours(name) for name in NAMES}
    _show(problem, answers(problem, programs))
    if arguments.plots is not None:
        arguments.plots.mkdir(parents=True, exist_ok=True)
        alpa = {f"Alpa's {name}": alpas(name) for name in ("training_dp_2", "training_dp")}
        numbers = [number for number in LAYERS if number <= arguments.layers]
        problems = [asked(number) for number in tqdm(numbers, "cost tables", disable=None)]
        _write(arguments.plots / "slicers-anneal.svg", anneal(problem))
        _write(arguments.plots / "slicers-costs.svg", costs_over_time(problem, _efforts(programs)))
        timed = {**programs, "exhaustive": ours("exhaustive"), **alpa}
        _write(arguments.plots / "slicers-seconds.svg", runtimes(problems, timed))
    return 0


def _efforts(programs: dict[str, Solve]) -> dict[str, list[Solve]]:
    """Each slicer as it is; those that may try for longer also with less effort and with more."""
    return {
        **{name: [solve] for name, solve in programs.items()},
        "mcmc": [ours(Mcmc(proposals=number)) for number in (10, 100, 1_000, 10_000, 100_000)],
        "gradient": [ours(Gradient(rounds=number)) for number in (5, 10, 20, 40)],
    }


def _show(problem: SlicingProblem, found: dict[str, Answer]) -> None:
    title = f"{problem.num_layers} layers on {problem.num_devices} devices, {problem.num_micro_batches} micro-batches"
    table = Table("slicer", "seconds a step", "at most to save", "took", "stages: layers x devices", title=title)
    for name, answer in found.items():
        sizes = [(stage.last - stage.first + 1, int(problem.submesh_sizes[stage.submesh])) for stage in answer.stages]
        stages = ", ".join(f"{layers}x{devices}" for layers, devices in sizes)
        bound = answer.lower_bound_s
        gap = f"{100 * (1 - bound / answer.cost_s):.2g} %" if bound > 0 else "unknown"
        table.add_row(name, f"{answer.cost_s:.4f}", gap, f"{1e3 * answer.seconds:.2f} ms", stages or "none found")
    Console(width=140).print(table)


def _write(path: Path, picture: Figure) -> None:
    save(picture, path)
    print(f"Wrote {path}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="moe-1.3b", help="of alpa_dejavu.layers.models (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=16, help="that it is cut into (default: %(default)s)")
    parser.add_argument("--hosts", type=int, default=4, help="p3.16xlarge (default: %(default)s)")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="a folder for the pictures")
    return parser.parse_args()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    raise SystemExit(main())
