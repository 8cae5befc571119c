"""Whether many starts pay: steps and compute to a target, next to other uses of the same workers.

    python benchmarks/parallel_initialization.py [--json OUT] [--models NAME ...] [--seeds N] [--contests]

Four small networks as flax makes them learn data that packages ship: scikit-learn's digits (mlp, cnn) and the text of
Python's own library (gpt, rnn). `alpa_dejavu.training.initialization` races as many starts as there are workers: by two
judges, two kinds of starts (the network's own with other seeds, and Sobol scales of it) and both budgets. Contests are
races between four methods of starting. Beside them stand one start, at other rates, too; it for longer, with the
compute of a race; the workers used for data parallelism, with batches that are N times as large, at the same learning
rate, sqrt(N) times and N times it; and search without dropping any start, until the first one is there: what the luck
of N starts is worth. Learning rates suit the one start.

The target is the loss that one start has after 60 % of its steps: the median of other seeds than those that are judged,
and known before these are trained. Losses are means of the last 40 steps. Time is in steps per worker: each worker has
a start, and all see the same batches. Ratios are to one start with the same seed and batches; a run that doesn't reach
the target counts as if it took twice a training. All intervals are of 95 %.

One way alone is judged, which was chosen with other seeds. Rows that the JSON file has are not measured again. All of
it takes about 30 minutes of one core. Exit status 1 if that way isn't faster to the target on 3 of the 4 networks, or
if a race with budget="small" takes over 25 % more compute than one start.
"""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from tqdm import tqdm

from alpa_dejavu._util.interval import Interval
from harness import Figure, Results, Table, at_least, options
from races._models import TASKS, Task
from races._ways import LONGER, Way, loss_at, of_contests, race_of, row, trained, ways

WORKERS, SEEDS, TARGET_SEEDS, TARGET_AT = 8, 10, range(1000, 1011), 0.6
CONFIDENCE, ENOUGH, SMALL = 0.95, 3, 1.25
"""Networks on which the judged way has to be faster, and what budget="small" may cost in trainings of one start."""
UNREACHED = LONGER["full"]
"""A run that doesn't reach the target in its steps counts as if in so many times as many."""
JUDGED = race_of("halving", "sobol", "full")
"""The way that is judged: with seeds from 2000 on it was as fast as any."""
Rows = Mapping[str, Sequence[Mapping[str, Any]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what is missing, shows all, and says what is missed."""
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", choices=list(TASKS), default=list(TASKS), help="measure these alone")
    parser.add_argument("--seeds", type=at_least(2), metavar="N", default=SEEDS, help="so many (default: %(default)s)")
    parser.add_argument("--contests", action="store_true", help="the contests and what they are judged by alone")
    given = parser.parse_args(arguments)
    wanted = of_contests(WORKERS) if given.contests else ways(WORKERS)
    result = Results(given.json, settings(given.seeds), models={})
    for name in given.models:
        _measure(name, TASKS[name], result, wanted, given.seeds)
    models = result["models"]
    return result.shown(overview(models, given.seeds), figures=figures(models))


def settings(seeds: int) -> dict[str, Any]:
    """The settings that rows depend on."""
    tasks = {name: [task.optimizer, task.rate, task.rows, task.steps] for name, task in TASKS.items()}
    every = [list(dataclasses.astuple(way)) for way in ways(WORKERS)]
    return {"seeds": seeds, "target_seeds": list(TARGET_SEEDS), "workers": WORKERS, "tasks": tasks, "ways": every}


def target_of(task: Task) -> float:
    """The median loss that single starts have at `TARGET_AT` of their steps."""
    way, steps = Way("target", longer=TARGET_AT), round(TARGET_AT * task.steps)
    return statistics.median(loss_at(trained(task, way, seed).losses, steps) for seed in tqdm(TARGET_SEEDS, "target"))


def _measure(name: str, task: Task, result: Results, wanted: Sequence[Way], seeds: int) -> None:
    model = result["models"].setdefault(name, {"data": task.data().mark, "rows": {}})
    if model["data"] != task.data().mark:
        raise SystemExit(f"{result.file} was measured with other data for {name}: name another file")
    if "target" not in model:
        model["target"] = target_of(task)
        result.write()
    for way in tqdm(wanted, name, unit="way"):
        rows = model["rows"].setdefault(way.name, [])
        for seed in set(range(seeds)) - {measured["seed"] for measured in rows}:
            rows.append(row(task, way, seed, model["target"]))
            result.write()


def summaries(rows: Rows, steps: int) -> dict[str, dict[str, Any]]:
    """The figures of each way of a network that is trained for so many steps, over seeds.

    Returns:
        for each way its "ratio" of steps to those of one start with the same seed (a geometric mean), the same of
        "compute", and "whole", the largest compute of a run in trainings of one start.
    """
    # One start may take its time.
    alone = {measured["seed"]: _steps(measured, steps) for measured in rows[f"one start, {UNREACHED:g}x as long"]}
    found = {}
    for name, every in rows.items():
        ratios = [math.log(_steps(measured, steps) / alone[measured["seed"]]) for measured in every]
        computes = [
            math.log((measured["compute"] or UNREACHED * measured["all_steps"]) / alone[measured["seed"]])
            for measured in every
        ]
        found[name] = {
            "ratio": Interval.of(ratios, CONFIDENCE).exp(),
            "compute": Interval.of(computes, CONFIDENCE).exp(),
            "whole": max(measured["all_steps"] for measured in every) / steps,
        }
    return found


def _steps(measured: Mapping[str, Any], steps: int) -> float:
    return UNREACHED * steps if measured["reached"] is None else float(measured["reached"])


def overview(models: Mapping[str, Any], seeds: int) -> Table:
    """All ways on all networks: steps per worker to the target over one start's, and after "at" the compute over it."""
    by_network = {name: summaries(model["rows"], TASKS[name].steps) for name, model in models.items()}
    rows = []
    for way in ways(WORKERS):
        cells = {
            name: f"{_interval(of[way.name]['ratio'])} at {of[way.name]['compute'].mean:.1f}"
            for name, of in by_network.items() if way.name in of
        }  # fmt: skip
        if cells:
            rows.append({"way": way.name, **cells})
    columns = {"steps to the target over one start's": "{way}", **{name: f"{{{name}}}" for name in by_network}}
    return Table.of(rows, columns, f'{WORKERS} workers, {seeds} seeds; intervals of 95 %; after "at" the compute')


def figures(models: Mapping[str, Any]) -> list[Figure]:
    """Whether the judged way is surely faster than one start, and what the small budget costs."""
    by_network = {name: summaries(model["rows"], TASKS[name].steps) for name, model in models.items()}
    faster = [name for name, of in by_network.items() if of[JUDGED]["ratio"].high < 1]
    needed = min(ENOUGH, len(models))
    small = [way.name for way in ways(WORKERS) if way.budget == "small"]
    whole = max(of[name]["whole"] for of in by_network.values() for name in small if name in of)
    return [
        Figure(JUDGED, "networks on which it is surely faster than one start", f"at least {needed}",
               f"{len(faster)} of {len(models)}: {', '.join(faster) or 'none'}", len(faster) >= needed),
        Figure('budget="small"', "compute of a whole run, in trainings of one start", f"at most {SMALL:g}",
               f"{whole:.3f}", whole <= SMALL),
    ]  # fmt: skip


def _interval(value: Interval) -> str:
    return f"{value.mean:.2f} ({value.low:.2f} to {value.high:.2f})"


if __name__ == "__main__":
    raise SystemExit(main())
