"""Jobs and lost hosts from CSV files in the published columns of Alibaba's cluster traces, and such files drawn.

Jobs: `pai_task_table` of cluster-trace-gpu-v2020; hosts: `machine_meta` of cluster-trace-v2018. A first line with the
names of the columns may be there; the published files have none. Of a job its arrival, its seconds, and the devices,
cores and memory that it asked for are taken from the file; how its steps get longer with less isn't in it, and is a
rule (`read_jobs`).

References:
    Weng and others, MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale Heterogeneous GPU Clusters, NSDI
    2022.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import final

from alpa_dejavu.playground.jobs._columns import HOST_COLUMNS, JOB_COLUMNS, Cells, drawn_hosts, drawn_jobs, read_rows
from alpa_dejavu.playground.jobs._workload import ClusterJob, HostChange, StepCurve
from alpa_dejavu.problem import checks

__all__ = ["HOST_COLUMNS", "JOB_COLUMNS", "JobTrace", "drawn_hosts", "drawn_jobs", "read_host_changes", "read_jobs"]

_STATUSES = ("Terminated", "Running", "Failed", "Waiting", "Interrupted")
_THERE = "USING"
_PERCENT, _GIBIBYTE = 100.0, 2.0**30


@final
@dataclasses.dataclass(frozen=True)
class JobTrace:
    """The jobs of a trace.

    Attributes:
        jobs: in the order in which they come; the first one comes at 0.
        left_out: how many jobs aren't among them, by the reason.
    """

    jobs: tuple[ClusterJob, ...]
    left_out: Mapping[str, int]


def read_jobs(
    path: str | os.PathLike[str], curves: Sequence[StepCurve], storage_factor: float = 3.0, checkpoint_s: float = 600.0
) -> JobTrace:
    """Returns the jobs of a file in the columns of `pai_task_table`; tasks of a name are one job.

    A job has one of the curves, by the CRC-32 of its name, for seconds of computing by devices. The devices that it
    asked for are rounded up to a number of the curve. With all that it asked for a step is as short as these devices
    compute it: the cores are those that prepare its samples in that time, the memory keeps all its samples. Where
    memory keeps none, reading takes `storage_factor` times that time: the trace doesn't say how much jobs read. A job
    has as many steps as make the seconds that it took.

    Args:
        path: the file.
        curves: of which the seconds of computing are taken.
        storage_factor: at least 0.
        checkpoint_s: seconds between two checkpoints of a job that has all that it asked for.

    Raises:
        ValueError: the file can't be read, a line isn't as it must be, or no job is left; says what is wrong where.
    """
    checks.not_negative("trace", "storage_factor", storage_factor)
    tasks: dict[str, list[Cells]] = defaultdict(list)
    for cells in read_rows(pathlib.Path(path), JOB_COLUMNS):
        cells.one_of("status", _STATUSES)
        tasks[cells.text("job_name")].append(cells)
    left_out: Counter[str] = Counter()
    jobs = []
    for name, every in tasks.items():
        curve = curves[zlib.crc32(name.encode()) % len(curves)]
        job = _job(name, every, curve, storage_factor, checkpoint_s)
        if isinstance(job, ClusterJob):
            jobs.append(job)
        else:
            left_out[job] += 1
    if not jobs:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "it has no line"
        raise ValueError(f"{path} has no job that can be run ({reasons}), but must have one; take another part of the "
                         "trace")  # fmt: skip
    jobs.sort(key=lambda job: job.arrival_s)
    first_s = jobs[0].arrival_s
    return JobTrace(tuple(dataclasses.replace(job, arrival_s=job.arrival_s - first_s) for job in jobs), left_out)


def read_host_changes(path: str | os.PathLike[str], hosts: int) -> tuple[HostChange, ...]:
    """Returns when hosts are lost and come back, of a file in the columns of `machine_meta`: a machine is there where
    its status is USING.

    The first machines of the file are hosts 0, 1, ..., and the others are left out. The least time is 0.

    Raises:
        ValueError: the file can't be read, or a line isn't as it must be; says what is wrong where.
    """
    rows = [
        (cells.number("time_stamp"), cells.text("machine_id"), cells.text("status") == _THERE)
        for cells in read_rows(pathlib.Path(path), HOST_COLUMNS)
    ]
    numbers: dict[str, int] = {}
    for _, name, _ in rows:
        numbers.setdefault(name, len(numbers))
    first_s, present_hosts, changes = min((at_s for at_s, *_ in rows), default=0.0), dict[str, bool](), []
    for at_s, name, present in sorted(rows, key=lambda row: row[0]):
        if present != present_hosts.get(name, True) and numbers[name] < hosts:
            changes.append(HostChange(at_s - first_s, numbers[name], present))
        present_hosts[name] = present
    return tuple(changes)


def _job(
    name: str, tasks: Sequence[Cells], curve: StepCurve, storage_factor: float, checkpoint_s: float
) -> ClusterJob | str:
    """Returns a job of its tasks, or why there is none."""
    if any(task.text("status") != "Terminated" for task in tasks):
        return "not terminated"
    totals = [
        math.fsum(task.number("inst_num") * task.number(column, empty=0.0) for task in tasks)
        for column in ("plan_gpu", "plan_cpu", "plan_mem")
    ]
    devices, cores, memory_bytes = totals[0] / _PERCENT, totals[1] / _PERCENT, totals[2] * _GIBIBYTE
    begin_s = min(task.number("start_time") for task in tasks)
    seconds = max(task.number("end_time", least=task.number("start_time")) for task in tasks) - begin_s
    if not devices:
        return "without a device"
    if not seconds:
        return "without a second"
    asked = next((size for size in curve.sizes if size >= devices), curve.sizes[-1])
    step_s = curve.compute_s[asked]
    own = StepCurve(curve.compute_s, cores * step_s, memory_bytes, storage_factor * step_s if memory_bytes else 0.0)
    return ClusterJob(name, begin_s, seconds / step_s, asked, own, checkpoint_s / step_s)
