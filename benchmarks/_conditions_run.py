"""A small job under Alpa in a process of its own, under one condition of the machine: planned, and trained in turns."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, final

from _measured_jobs import JOBS, Job
from _measured_models import language_model
from _measured_runs import last_stages
from harness import Remote, answer_all

MICRO_BATCHES = 4
_DEMO = partial(language_model, blocks=4, hidden=128, length=64, vocabulary=256)
CASES = {
    "demo": Job("demo", _DEMO, 16, 4),
    **{name: JOBS[name] for name in ("mlp", "pyramid", "hourglass", "gpt-long", "mixer")},
}
"""The demo's sizes, and five jobs of `measured_plans.py`."""
_PATIENCE_S = 60.0


@final
@dataclasses.dataclass(frozen=True)
class Condition:
    """How the machine is while a job is planned and trained: so many Ray nodes with so many devices each, all on this
    machine; whether another program computes on the first core, each stage's worker keeps to the cores of its devices'
    numbers, and only the first core may be used.
    """

    hosts: int = 1
    devices: int = 4
    busy: bool = False
    pinned: bool = False
    one_core: bool = False


CONDITIONS = {
    "quiet": Condition(),
    "busy core": Condition(busy=True),
    "2 devices": Condition(devices=2),
    "8 devices": Condition(devices=8),
    "pinned": Condition(pinned=True),
    "one core": Condition(one_core=True),
    "two raylets": Condition(hosts=2, devices=2),
}


@contextlib.contextmanager
def running(condition: Condition, cache: str) -> Iterator[Remote]:
    """A process with a Ray cluster under a condition, and a cache folder; all is gone when the block ends."""
    with Remote.started(_serve, condition, cache, name="trainer", patience_s=_PATIENCE_S) as remote:
        yield remote


@contextlib.contextmanager
def disturbed(condition: Condition) -> Iterator[None]:
    """Another program computes beside, for as long as a `with` block runs, if the condition has one."""
    if not condition.busy:
        yield
        return
    process = multiprocessing.get_context("spawn").Process(target=_compute, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _compute() -> None:
    _keep_to(_cores()[:1])
    started_by = os.getppid()
    while os.getppid() == started_by:  # whoever kills the benchmark ends this, too
        sum(range(100_000))


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def _keep_to(cores: Sequence[int]) -> None:
    os.sched_setaffinity(0, cores)


def _serve(connection: Connection, condition: Condition, cache: str) -> None:
    if condition.one_core:
        _keep_to(_cores()[:1])
    os.environ["ALPA_DEJAVU_CACHE"] = cache
    from alpa_dejavu.alpa.local_cluster import local_cluster

    # AutoStageOption leaves its profile in the working directory.
    with tempfile.TemporaryDirectory() as directory, local_cluster(condition.devices, condition.hosts):
        os.chdir(directory)
        answer_all(connection, _Server(condition))


@final
class _Server:
    """The methods that a `running` process has."""

    def __init__(self, condition: Condition) -> None:
        self._condition = condition

    def prepare(self, job: str, stages: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
        """Plans and compiles a job: by the given stages, by AutoStageOption for none, and by ours for None."""
        import alpa

        from alpa_dejavu import DejavuStageOption

        alpa.init("ray")
        if stages is None:
            option: Any = DejavuStageOption()
        else:
            option = _manual(stages) if stages else alpa.AutoStageOption()
        found = self._compiled(CASES[job], option)
        if isinstance(option, DejavuStageOption) and option.last_plan is not None:
            plan = option.last_plan
            found["predicted_s"], found["notes"] = plan.step_s, list(plan.notes)
            found["measuring_s"] = plan.planning_s.get("measuring", 0.0)
            found["probability"] = None if plan.confidence is None else plan.confidence.probability
        return found

    def steps(self, count: int) -> list[float]:
        """The seconds of so many training steps."""
        return [self._timed_step() for _ in range(count)]

    def _compiled(self, job: Job, option: Any) -> dict[str, Any]:
        import alpa
        from alpa.pipeline_parallel import compile_executable
        from alpa.timer import timers

        from alpa_dejavu.alpa._gradients import with_marked_gradients
        from alpa_dejavu.alpa._workers import StageWorkers
        from alpa_dejavu.layers import concrete

        step, arguments = job.model(job.batch)
        self._state, *self._rest = concrete(arguments)
        method = alpa.PipeshardParallel(
            num_micro_batches=MICRO_BATCHES, layer_option=alpa.AutoLayerOption(job.layers), stage_option=option
        )
        self._step = alpa.parallelize(with_marked_gradients(step), method=method, donate_argnums=(0,))
        began = time.perf_counter()
        with _timed(compile_executable, "cluster_layers_and_slice_mesh") as planning_s:
            self._executable = self._step.get_executable(self._state, *self._rest)
        self._executable.sync()
        compile_s = time.perf_counter() - began
        if self._condition.pinned:
            workers = StageWorkers(self._executable)
            sizes = [mesh.num_devices for mesh in self._executable.mesh_group]
            numbers = itertools.count()
            workers.pin([sorted({_cores()[next(numbers) % len(_cores())] for _ in range(n)}) for n in sizes])
        parts = {
            name: timers(f"stage-construction-{name}").elapsed("sum") for name in ("compilation", "profiling", "dp")
        }
        return {"stages": last_stages(), "planning_s": sum(planning_s), "compile_s": compile_s, "parts_s": parts}

    def _timed_step(self) -> float:
        began = time.perf_counter()
        self._state, *_ = self._step(self._state, *self._rest)
        self._executable.sync()
        return time.perf_counter() - began


def _manual(stages: Sequence[Mapping[str, Any]]) -> Any:
    import alpa

    columns = ("layers", "submesh", "logical_mesh", "options")
    layers, submeshes, logical, options = ([stage[name] for stage in stages] for name in columns)
    return alpa.ManualStageOption(layers, [tuple(one) for one in submeshes], [tuple(one) for one in logical], options)


@contextlib.contextmanager
def _timed(module: Any, name: str) -> Iterator[list[float]]:
    """Notes the seconds of each call of a module's function for as long as a `with` block runs."""
    original: Callable[..., Any] = getattr(module, name)
    seconds: list[float] = []

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - began)

    setattr(module, name, timed)
    try:
        yield seconds
    finally:
        setattr(module, name, original)
