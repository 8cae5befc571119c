"""Whether it holds in seconds: two Ray workers race on two cores, next to one worker with one start."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from alpa_dejavu.initialization import Progress
from alpa_dejavu.local_cluster import local_cluster
from races._models import TASKS
from races._plan import Plan
from races._report import CHEAP
from races._ways import Way, steps_to, trained, ways

WORKERS, REPORTED_STEPS = 2, 10
MODEL = "cnn, batches of 2048"
TASK = dataclasses.replace(TASKS["cnn"], rows=2048)
"""A step takes long enough that what Ray does beside it hardly counts."""


def measured(result: dict[str, Any], plan: Plan, write: Callable[[], None]) -> None:
    """Adds pairs of seconds to a result, on a Ray cluster of its own whose workers have one thread each."""
    pairs = result.setdefault("seconds", [])
    if len(pairs) == plan.pairs:
        return
    target = plan.target(TASK)
    (race,) = (way for way in ways(plan.workers) if way.name == CHEAP)
    # Ray's workers import the networks from here.
    there = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [there])])
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
    with local_cluster(devices=WORKERS):
        for seed in tqdm(plan.seeds[len(pairs) : plan.pairs], "seconds", unit="pair"):
            alone_s = seconds_to(Way("one start"), 1, seed, target)
            race_s = seconds_to(race, WORKERS, seed, target)
            pairs.append({"model": MODEL, "seed": seed, "workers": WORKERS, "alone_s": alone_s, "race_s": race_s})
            write()


def seconds_to(way: Way, workers: int, seed: int, target: float) -> float | None:
    """From the call on, workers' beginnings and compiling included, to the report in which the target is reached."""
    reports: list[tuple[float, int]] = []

    def note(progress: Progress) -> None:
        reports.append((time.perf_counter(), progress.step))

    given = {"workers": workers, "lanes": 1, "checkpoint_steps": REPORTED_STEPS, "on_progress": note}
    begun = time.perf_counter()
    result = trained(TASK, way, seed, **given)
    reached = steps_to(result.losses, target)
    return None if reached is None else next(at for at, step in reports if step >= reached) - begun
