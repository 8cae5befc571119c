"""Simulates distributed training on one machine, time and convergence together."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import pathlib
from collections.abc import Sequence

import numpy as np

from alpa_dejavu._util.phases import progress_bar
from alpa_dejavu.playground._arrays import Vector
from alpa_dejavu.playground._journal import Journal
from alpa_dejavu.playground._learner import JaxLearner, Learner
from alpa_dejavu.playground._recorder import Recorder
from alpa_dejavu.playground._virtual_world import VirtualWorld
from alpa_dejavu.playground._world import Exchange
from alpa_dejavu.playground.condition import Condition
from alpa_dejavu.playground.exchanges import exchange as resolved
from alpa_dejavu.playground.fault import Fault
from alpa_dejavu.playground.history import History
from alpa_dejavu.playground.job import Job, Until
from alpa_dejavu.problem import Cluster


def simulate(
    job: Job,
    cluster: Cluster,
    exchange: str | Exchange,
    *,
    faults: Sequence[Fault] = (),
    conditions: Sequence[Condition] = (),
    until: Until,
    seed: int = 0,
    start: Vector | None = None,
    looks: int = 50,
    folder: pathlib.Path | None = None,
    progress: bool = False,
    intervals: int = 0,
) -> History:
    """Simulates a training job of several workers, in virtual seconds; gradients and updates are really computed.

    The same arguments give the same history to the bit. A run of which a folder keeps the gradients and losses (four
    bytes for each parameter and step) may be interrupted: called again, it computes only those that are missing.

    Args:
        exchange: how workers train together, or its name, one of `EXCHANGES`.
        conditions: what the run is checked against; `History.violated_s` says when each was first violated.
        seed: of parameters, batches, compute seconds and what exchanges draw.
        start: the parameters that all workers begin with, such as another history's `params`; None: those of the
            seed.
        looks: at how many moments the model is looked at, besides the first and the last.
        folder: keeps what is computed; None: nothing does. It is checked to be of the same run, but functions, such as
            an optimizer's, can't be compared.
        progress: whether a bar is shown, once it takes more than two seconds; without a terminal a line every ten.
        intervals: how many intervals of workers' time `History.timeline` has at most.

    Raises:
        ValueError: the job doesn't fit to the cluster, the exchange can't do with so many workers, the folder holds
            another run, `start` isn't for the problem, or gradients take no seconds where only seconds end the run.
    """
    way = resolved(exchange)
    hosts = job.worker_hosts(cluster)
    if until.steps is None and not np.all(job.compute_s):
        raise ValueError(f"job: compute_s is {job.compute_s}, but must be above 0 where until.steps is None; give "
                         "until.steps, as time needn't go on")  # fmt: skip
    run = {"exchange": repr(way), "faults": repr(tuple(faults)), "until": repr(until), "seed": seed, "looks": looks}
    begun = {} if start is None else {"start": hashlib.sha256(start.tobytes()).hexdigest()}
    # What tells one job's results from another's; functions can't.
    described = {**vars(job), "problem": None if job.problem is None else job.problem.name}
    del described["optimizer"]
    journal = Journal(folder, {**run, "cluster": repr(cluster), **described, **begun})
    shards = job.split(cluster, seed)
    job = dataclasses.replace(job, shards=None if shards is None else shards.rows)
    learner = Learner(job.samples) if job.problem is None else JaxLearner(job, job.problem, seed, journal, start)
    num_bytes = 4.0 * learner.start(0).size if job.num_bytes is None else float(job.num_bytes)
    recorder = Recorder(job, until, looks, len(hosts), intervals)
    world = VirtualWorld(job, cluster, learner, until, seed, recorder, num_bytes)
    recorder.world = world
    recorder.observers = [condition.observer(job, world) for condition in conditions]
    for fault in faults:
        world.spawn(None, fault.run(world))
    world.begin(way)
    total = None if until.steps is None else until.steps * len(hosts)
    shown = progress_bar(total=total, desc=type(way).__name__, unit=" steps") if progress else contextlib.nullcontext()
    with shown as bar:

        def after_event() -> None:
            recorder.happened(world.now_s)
            if bar is not None:
                bar.update(recorder.steps - bar.n)

        try:
            end = world.run(after_event)
            if world.mover is not None:
                world.mover.note()
            return recorder.history(end)
        finally:
            journal.write()
