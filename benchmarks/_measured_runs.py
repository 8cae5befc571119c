"""Plans on Ray clusters of CPU devices, each with a core of its own, in processes that take turns.

The workers of a cluster keep the submeshes of its first plan, so plans on other submeshes have another cluster, in
another process. All of them are there at once, and only one runs at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, final

import _thread_times
from _measured_jobs import JOBS, Job
from alpa_dejavu.calibration.measurement import StepNotes
from alpa_dejavu.problem import Plan
from harness import Remote, answer_all

ENVIRONMENT = {
    # A device computes on the one thread that runs its program: the other threads that a process has, for oneDNN's
    # products and for parts of loops, are one pool for all of its devices, for which they would wait in turns.
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false "
    "--xla_disable_hlo_passes=onednn-matmul-rewriter,cpu-parallel-task-assigner"
}
"""The environment of the devices' processes."""
_PATIENCE_S = 60.0


def submesh_sizes(plan: Plan) -> tuple[int, ...]:
    """How many devices each stage has; plans that have the same can run on one cluster."""
    return tuple(stage.submesh.num_devices for stage in plan.stages)


def runner(cores: Sequence[int]) -> contextlib.AbstractContextManager[Remote]:
    """A process with a cluster of as many devices as there are cores; both are gone when the block ends."""
    return Remote.started(_serve, list(cores), name="cluster", patience_s=_PATIENCE_S)


def _serve(connection: Connection, cores: list[int]) -> None:
    import ray

    from alpa_dejavu.alpa.local_cluster import local_cluster

    # AutoStageOption leaves its profile in the working directory, ours what it learned in its cache.
    with tempfile.TemporaryDirectory() as directory, local_cluster(devices=len(cores)):
        os.chdir(directory)
        os.environ["ALPA_DEJAVU_CACHE"] = directory
        ray.cloudpickle.register_pickle_by_value(_thread_times)
        answer_all(connection, _Server(cores))


@final
@dataclasses.dataclass
class _Server:
    """The methods that a `runner` has."""

    cores: list[int]
    runs: list[Any] = dataclasses.field(default_factory=list)
    sizes: tuple[int, ...] = ()

    def plans(self, job: str, plans: list[Plan]) -> dict[str, Any]:
        """Compiles a job's plans in place of others; seconds, or an error, of each, and the cores of the workers."""
        from alpa_dejavu.alpa import PlanRun

        self._connect_anew()
        self.sizes = submesh_sizes(plans[0])
        compiled: list[float | str] = []
        pinned: Any = None
        for plan in plans:
            start = time.perf_counter()
            try:
                self.runs.append(PlanRun(plan, JOBS[job].model))
                compiled.append(time.perf_counter() - start)
            except Exception as error:
                self.runs.append(None)
                compiled.append(f"{type(error).__name__}: {error}")
                continue
            if pinned is None:
                ends = itertools.accumulate(submesh_sizes(plan))
                spans = zip(ends, submesh_sizes(plan), strict=True)
                pinned = self.runs[-1].pin([self.cores[end - size : end] for end, size in spans])
        return {"compile_s": compiled, "pinned": pinned}

    def steps(self, number: int, count: int, noting: bool) -> tuple[list[StepNotes], float]:
        """So many steps by one of the plans, and which part of that time its devices waited for their cores.

        What is noted is one plan's alone, so it is asked for each time.
        """
        run = self.runs[number]
        run.noting(noting)
        before = run.on_workers(_thread_times.seconds_without_core)
        steps = [run.step() for _ in range(count)]
        after = run.on_workers(_thread_times.seconds_without_core)
        waited_s = [
            (now - old) * len(stages[0]) / size
            for size, stages in zip(self.sizes, zip(after, before, strict=True), strict=True)
            for now, old in zip(*stages, strict=True)
        ]
        return steps, max(waited_s) / sum(step.step_s for step in steps)

    def threads(self, number: int, count: int) -> dict[str, Any]:
        """CPU seconds of each thread of each worker in so many steps, and the cores of all threads."""
        from alpa_dejavu._util.threads import cores_of_threads

        run = self.runs[number]
        before, start = run.on_workers(_thread_times.thread_seconds), time.perf_counter()
        for _ in range(count):
            run.step()
        wall_s, after = time.perf_counter() - start, run.on_workers(_thread_times.thread_seconds)
        seconds = [
            sorted((round(now - old.get(name, 0.0), 3) for name, now in new.items() if now > old.get(name, 0.0)))[::-1]
            for stages in zip(after, before, strict=True)
            for new, old in zip(*stages, strict=True)
        ]
        return {"wall_s": wall_s, "thread_seconds": seconds, "cores": run.on_workers(cores_of_threads)}

    def auto(self, job: str, count: int) -> dict[str, Any]:
        """AutoStageOption's plan of a job for so many micro-batches, and the seconds that it took; it isn't run."""
        self._connect_anew()
        return auto_plan(JOBS[job], count)

    def ours(self, job: str, count: int, profile: str) -> Plan:
        """Our plan of a job for so many micro-batches, with stages measured as `profile` says; it isn't run."""
        from alpa_dejavu import DejavuStageOption

        self._connect_anew()
        option = DejavuStageOption(profile=profile)
        _plan(JOBS[job], count, option)
        assert option.last_plan is not None, "it has planned"
        return option.last_plan

    def _connect_anew(self) -> None:
        import alpa
        from alpa.api import clear_executable_cache

        self.runs.clear()
        clear_executable_cache()
        if alpa.api.is_initialized:
            alpa.shutdown()
        alpa.init("ray")


class _PlannedError(Exception):
    """Ends a compilation where the plan is known."""


def auto_plan(job: Job, count: int) -> dict[str, Any]:
    """Has Alpa's AutoStageOption plan a job on the cluster that Alpa is connected to."""
    import alpa

    seconds = _plan(job, count, alpa.AutoStageOption())
    return {"planning_s": seconds, "num_micro_batches": count, "stages": last_stages()}


def _plan(job: Job, count: int, option: Any) -> float:
    """Has a stage option plan a job on the cluster that Alpa is connected to; the seconds that it took."""
    import alpa
    from alpa.pipeline_parallel import stage_construction

    from alpa_dejavu.alpa._gradients import with_marked_gradients
    from alpa_dejavu.layers import concrete

    step, arguments = job.model(job.batch)
    method = alpa.PipeshardParallel(
        num_micro_batches=count, layer_option=alpa.AutoLayerOption(job.layers), stage_option=option
    )
    original = stage_construction.get_sliced_virtual_submeshes

    def planned(*_args: Any) -> Any:
        raise _PlannedError

    stage_construction.get_sliced_virtual_submeshes = planned
    start = time.perf_counter()
    try:
        parallel = alpa.parallelize(with_marked_gradients(step), method=method, donate_argnums=(0,))
        parallel.get_executable(*concrete(arguments))
    except _PlannedError:
        pass
    finally:
        stage_construction.get_sliced_virtual_submeshes = original
    return time.perf_counter() - start


def last_stages() -> list[dict[str, Any]]:
    """The stages of the plan that Alpa made last in this process; none if they were given to it."""
    from alpa.pipeline_parallel.stage_construction import get_last_dp_result

    _, ids, *others = get_last_dp_result()
    return [
        {
            "layers": list(map(int, layers)),
            "submesh": list(map(int, submesh)),
            "logical_mesh": list(map(int, shape)),
            "options": dict(option),
        }
        for layers, submesh, shape, option in zip(ids or (), *(each or () for each in others), strict=True)
    ]
