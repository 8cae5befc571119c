"""Whether it holds in seconds: two Ray workers race on two cores, next to one worker with one start."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from alpa_dejavu.initialization import Progress
from alpa_dejavu.local_cluster import local_cluster
from races._models import Task
from races._plan import Plan
from races._report import CHEAP
from races._ways import Way, steps_to, trained, ways

MODEL, WORKERS, REPORTED_STEPS = "cnn", 2, 10


def measured(result: dict[str, Any], plan: Plan, write: Callable[[], None]) -> None:
    """Adds pairs of seconds to a result that has the model's target, on a Ray cluster of its own."""
    pairs = result.setdefault("seconds", [])
    if MODEL not in result["models"] or len(pairs) == plan.pairs:
        return
    task, target = plan.task(MODEL), result["models"][MODEL]["target"]
    (race,) = (way for way in ways(plan.workers) if way.name == CHEAP)
    with local_cluster(devices=WORKERS):
        for seed in tqdm(plan.seeds[len(pairs) : plan.pairs], "seconds", unit="pair"):
            alone_s = seconds_to(task, Way("one start"), 1, seed, target)
            race_s = seconds_to(task, race, WORKERS, seed, target)
            pairs.append({"model": MODEL, "seed": seed, "workers": WORKERS, "alone_s": alone_s, "race_s": race_s})
            write()


def seconds_to(task: Task, way: Way, workers: int, seed: int, target: float) -> float | None:
    """From the first report on, when a program is compiled, to the one in which the target is reached."""
    reports: list[tuple[float, int]] = []

    def note(progress: Progress) -> None:
        reports.append((time.perf_counter(), progress.step))

    given = {"workers": workers, "lanes": 1, "checkpoint_steps": REPORTED_STEPS, "on_progress": note}
    result = trained(task, way, seed, **given)
    reached = steps_to(result.losses, target)
    return None if reached is None else next(at for at, step in reports if step >= reached) - reports[0][0]
