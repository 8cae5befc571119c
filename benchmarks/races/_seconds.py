"""Whether it holds in seconds: two Ray workers with a start each on two cores, next to one worker with one start.

The same call gives both, with the same seed, batches and target, in turns; all is counted from the call on: workers'
beginnings, imports, compiling, and what is sent.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from alpa_dejavu.alpa.local_cluster import local_cluster
from alpa_dejavu.training.initialization import Progress
from races._data import digits
from races._models import Perceptron, Task
from races._plan import JUDGED, Plan
from races._ways import Way, steps_to, trained, ways

WORKERS, REPORTED_STEPS, TARGET_SEEDS = 2, 10, 3
WIDTH, ROWS = 1536, 1024
TASK = Task(Perceptron((WIDTH, WIDTH)), digits, "sgd", 0.17, ROWS, 200)
"""The table's mlp, wider and with larger batches, so that a step takes about a fifth of a second.

The learning rate is the table's, grown with the square root of the batch. With seeds from 100 on and a third of the
width, two starts take 0.71 of one start's steps at this rate. At 0.3 it is 0.88, and at 0.4, where one start comes
lowest, 1.00: so large batches leave little noise, and a better rate leaves nothing to save.
"""
ALONE = Way("one start")
(RACE,) = (way for way in ways(WORKERS) if way.name == JUDGED)
"""As many starts as workers; the rule, starts and budget that are judged."""


def measured(result: dict[str, Any], plan: Plan, write: Callable[[], None]) -> None:
    """Adds the pairs that are missing to a result, on a Ray cluster of its own whose workers have one thread each.

    Raises:
        ValueError: the result has pairs of another training, or of other ways.
    """
    task = TASK if plan.seconds_steps is None else dataclasses.replace(TASK, steps=plan.seconds_steps)
    settings = settings_of(task)
    found = result.setdefault("seconds", {"settings": settings, "pairs": []})
    if found["settings"] != settings:
        raise ValueError(f"pairs were measured with {found['settings']}, now {settings}: name another file")
    pairs = found["pairs"]
    if len(pairs) >= plan.pairs:
        return
    if "target" not in found:
        # Median of few: each of them takes as long as what is measured.
        found["target"] = dataclasses.replace(plan, target_seeds=plan.target_seeds[:TARGET_SEEDS]).target(task)
        write()
    os.environ.update(_of_workers())
    with local_cluster(devices=WORKERS):
        for seed in tqdm(plan.seeds[len(pairs) : plan.pairs], "seconds", unit="pair"):
            turns = (ALONE, RACE) if len(pairs) % 2 == 0 else (RACE, ALONE)
            runs = {way.name: timed(task, way, seed, found["target"]) for way in turns}
            pairs.append({"seed": seed, "alone": runs[ALONE.name], "race": runs[RACE.name]})
            write()


def _of_workers() -> dict[str, str]:
    """Environment of Ray's workers: they import the networks from here, and jax takes as many threads as NPROC says.

    Ray's own default has any other process of the machine go before its workers.
    """
    path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path), "NPROC": "1", "RAY_worker_niceness": "0"}


def settings_of(task: Task) -> dict[str, Any]:
    """What pairs depend on, as JSON has it."""
    settings = {
        "network": f"mlp, {WIDTH} wide", "optimizer": task.optimizer, "rate": task.rate, "rows": task.rows,
        "steps": task.steps, "workers": WORKERS, "reported_steps": REPORTED_STEPS,
        "ways": [dataclasses.astuple(way) for way in (ALONE, RACE)],
    }  # fmt: skip
    kept: dict[str, Any] = json.loads(json.dumps(settings))
    return kept


def timed(task: Task, way: Way, seed: int, target: float) -> dict[str, Any]:
    """Steps and seconds to the target of a run with a Ray worker for each start; None where it isn't reached."""
    reports: list[tuple[float, int]] = []

    def note(progress: Progress) -> None:
        reports.append((time.perf_counter() - begun, progress.step))

    given = {"workers": way.starts, "lanes": 1, "checkpoint_steps": REPORTED_STEPS, "on_progress": note}
    begun = time.perf_counter()
    result = trained(task, way, seed, **given)
    return told(reports, result.rungs[-1], steps_to(result.losses, target), time.perf_counter() - begun)


def told(reports: Sequence[tuple[float, int]], race_steps: int, reached: int | None, whole_s: float) -> dict[str, Any]:
    """What reports say of a run.

    Args:
        reports: seconds from the call on, and the steps that the farthest candidate had then.
        race_steps: after so many steps one candidate alone is left.
        reached: the step of the target, if there is one.
        whole_s: of the run.

    Returns:
        steps: as given. to_target_s: to the report that has it. begun_s: until the first step began, worker and
        program ready. step_s: of a step during the race, of the worker that is ahead; later_step_s: of one after it,
        None if there is none.
    """
    first: dict[int, float] = {}
    for at, step in reports:
        first.setdefault(step, at)
    ends = sorted(first)
    each = {there: (first[there] - first[here]) / (there - here) for here, there in itertools.pairwise(ends)}
    racing = [step_s for there, step_s in each.items() if there <= race_steps]
    # The first step after the race waits for the slower worker.
    later = [step_s for there, step_s in each.items() if there > race_steps][1:]
    step_s = statistics.median(racing)
    return {
        "steps": reached,
        "to_target_s": None if reached is None else next(at for at, step in reports if step >= reached),
        "begun_s": first[ends[0]] - ends[0] * step_s,
        "step_s": step_s,
        "later_step_s": statistics.median(later) if later else None,
        "whole_s": whole_s,
    }
