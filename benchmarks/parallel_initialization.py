"""Whether many starts pay: steps, compute, wall time and test accuracy next to other uses of the same workers.

    python benchmarks/parallel_initialization.py [--json OUT] [--only PART] [--models NAME ...] [--seeds N] [--contests]
                                                 [--quick]

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

Steps per worker are seconds where workers don't slow each other: the part `seconds` races two starts on two Ray workers
next to one start on one worker, on two cores, one thread a worker, each run in a turn of its own. All counts from the
call on: workers' beginnings, compiling, what is sent. So that this hardly matters, a training takes about 40 seconds:
the mlp, 1536 wide, with batches of 1024. Its learning rate follows the table's by the square root of the
batch; a better one leaves less to save (`races/_seconds.py` says how much). Other work on the machine spoils this part;
without two cores it is left out: `--only seconds` measures it alone.

Judged is one way alone, which was chosen with other seeds. Rows that the JSON file has are not measured again. All of
it takes about 30 minutes of one core and 10 of two.

Exit status 1 if that way isn't faster to the target on 3 of the 4 networks, or if a race with budget="small" takes over
25 % more compute than one start, or if the ratio in seconds of training is over 10 % from that in steps, or if two
starts aren't surely faster in seconds, all counted; 0 if all holds that was measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from tqdm import tqdm

from harness import Results, at_least, options, show
from races._models import TASKS
from races._plan import QUICK, WHOLE, Plan
from races._report import overview, tables, verdict
from races._seconds import WORKERS, measured
from races._ways import Way, of_contests, row, ways

VERSION = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what is missing, shows all, and says what is missed."""
    parser = options(__doc__)
    parser.add_argument("--only", choices=["steps", "seconds"], help="one part alone; the other one's figures are kept")
    parser.add_argument("--models", nargs="+", choices=list(TASKS), help="measure these alone")
    parser.add_argument("--seeds", type=at_least(2), metavar="N", help="so many of them (default: 10)")
    parser.add_argument("--contests", action="store_true", help="the contests and what they are judged by alone")
    parser.add_argument("--quick", action="store_true", help="one network, few steps, to see that all of it runs")
    given = parser.parse_args(arguments)
    plan = QUICK if given.quick else WHOLE
    if given.seeds is not None:
        plan = dataclasses.replace(plan, seeds=tuple(range(given.seeds)))
    names = given.models or list(plan.models)
    result = _begun(given, plan)
    for name in names if given.only != "seconds" else ():
        _measure(name, result, plan, of_contests(plan.workers) if given.contests else ways(plan.workers))
    if given.only != "steps" and plan.pairs:
        _measure_seconds(result, plan, given)
    # What the file has of the other part stays there, and isn't judged.
    left_out: dict[str, dict[str, Any]] = {"seconds": {"models": {}}, "steps": {"seconds": {}}}
    judged = {**result, **left_out.get(given.only or "", {})}
    said = verdict(judged, plan)
    show(*tables(judged, plan), *said.details)
    result.shown(*([overview(judged, plan)] if judged["models"] else []), *said.lines)
    return 0 if said.held else 1


def _measure(name: str, result: Results, plan: Plan, wanted: Sequence[Way]) -> None:
    task = plan.task(name)
    found = result["models"].setdefault(name, {"data": task.data().mark, "rows": {}})
    if found["data"] != task.data().mark:
        raise SystemExit(f"{result.file} was measured with other data for {name}: name another file")
    if "target" not in found:
        found["target"] = plan.target(task)
        result.write()
    left = [(way, seed) for way in wanted for seed in plan.seeds if not _has(found, way, seed)]
    for way, seed in tqdm(left, name, unit="run"):
        found["rows"].setdefault(way.name, []).append(row(task, way, seed, found["target"]))
        result.write()


def _measure_seconds(result: Results, plan: Plan, given: argparse.Namespace) -> None:
    if len(os.sched_getaffinity(0)) < WORKERS:
        said = f"the part in seconds needs {WORKERS} cores, one for each worker"
        if given.only == "seconds":
            raise SystemExit(f"{said}; run it where there are as many")
        logging.warning("%s: it is left out", said)
        return
    try:
        measured(result, plan, result.write)
    except ValueError as error:
        raise SystemExit(f"{given.json}: {error}") from None


def _has(found: dict[str, Any], way: Way, seed: int) -> bool:
    return any(one["seed"] == seed for one in found["rows"].get(way.name, ()))


def _begun(given: argparse.Namespace, plan: Plan) -> Results:
    """What an earlier run has left, or a new beginning."""
    result = Results(given.json, plan.settings(), models={})
    if result["version"] < VERSION:
        # Its seconds were of another race, of more starts than workers.
        result.pop("seconds", None)
    result["version"] = VERSION
    return result


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    raise SystemExit(main())
