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

import csv
import dataclasses
import io
import math
import os
import pathlib
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import final

import numpy as np

from alpa_dejavu._util.json_file import csv_lines
from alpa_dejavu._util.near_names import near
from alpa_dejavu.playground.jobs._workload import ClusterJob, HostChange, StepCurve
from alpa_dejavu.problem import checks

__all__ = ["JobTrace", "drawn_hosts", "drawn_jobs", "read_host_changes", "read_jobs"]

_STATUSES = ("Terminated", "Running", "Failed", "Waiting", "Interrupted")
_JOB_COLUMNS = ("job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem",
                "plan_gpu", "gpu_type")  # fmt: skip
_HOST_COLUMNS = ("machine_id", "time_stamp", "failure_domain_1", "failure_domain_2", "cpu_num", "mem_size", "status")


@final
@dataclasses.dataclass(frozen=True)
class JobTrace:
    """The jobs of a trace in the order in which they come, from 0 on, and how many aren't among them, by the reason."""

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
        checkpoint_s: seconds between two checkpoints of a job that has all that it asked for.

    Raises:
        ValueError: the file can't be read, a line isn't as it must be, or no job is left; says what is wrong where.
    """
    checks.not_negative("trace", "storage_factor", storage_factor)
    tasks: dict[str, list[_Cells]] = defaultdict(list)
    for cells in _read_rows(pathlib.Path(path), _JOB_COLUMNS):
        if (status := cells.text("status")) not in _STATUSES:
            raise cells.wrong("status", f"but must be one of {', '.join(_STATUSES)}{near(status, _STATUSES)}")
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
        (cells.number("time_stamp"), cells.text("machine_id"), cells.text("status") == "USING")
        for cells in _read_rows(pathlib.Path(path), _HOST_COLUMNS)
    ]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(name for _, name, _ in rows))}
    first_s, present_hosts, changes = min((at_s for at_s, *_ in rows), default=0.0), dict[str, bool](), []
    for at_s, name, present in sorted(rows, key=lambda row: row[0]):
        if present != present_hosts.get(name, True) and numbers[name] < hosts:
            changes.append(HostChange(at_s - first_s, numbers[name], present))
        present_hosts[name] = present
    return tuple(changes)


def _job(name: str, tasks: Sequence[_Cells], curve: StepCurve, storage_factor: float, checkpoint_s: float
         ) -> ClusterJob | str:  # fmt: skip
    """Returns a job of its tasks, or why there is none."""
    if any(task.text("status") != "Terminated" for task in tasks):
        return "not terminated"
    totals = [
        math.fsum(task.number("inst_num") * task.number(column, empty=0.0) for task in tasks)
        for column in ("plan_gpu", "plan_cpu", "plan_mem")
    ]
    devices, cores, memory_bytes = totals[0] / 100.0, totals[1] / 100.0, totals[2] * 2.0**30
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


@final
@dataclasses.dataclass(frozen=True)
class _Cells:
    """The cells of a line by their columns; its place in a file begins errors, a remedy ends them."""

    where: str
    cells: Mapping[str, str]
    remedy: str

    def text(self, column: str) -> str:
        """Returns the text of a column, which must not be empty."""
        if not self.cells[column]:
            raise self.wrong(column, "but must not be empty")
        return self.cells[column]

    def number(self, column: str, empty: float | None = None, least: float = 0.0) -> float:
        """Returns the number of a column, finite and not below the least one; `empty` stands for no text."""
        if empty is not None and not self.cells[column]:
            return empty
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= least):
            raise self.wrong(column, f"but must be a finite number of at least {least:g}")
        return value

    def wrong(self, column: str, must: str) -> ValueError:
        return ValueError(f"{self.where}: {column} is {self.cells[column]!r}, {must}; {self.remedy}")


def _read_rows(path: pathlib.Path, columns: Sequence[str]) -> Iterator[_Cells]:
    """Yields the lines of a CSV file, in their order; a first line with the columns' names is passed over."""
    remedy = f"a line has {', '.join(columns)}, separated by commas: mend the line, or leave it out"
    for line, cells in csv_lines(path, remedy):
        texts = [cell.strip() for cell in cells]
        if not any(texts) or (line == 1 and texts == list(columns)):
            continue
        where = f"{path}, line {line}"
        if len(texts) != len(columns):
            raise ValueError(f"{where}: it has {len(texts)} cells, but must have {len(columns)}; {remedy}")
        yield _Cells(where, dict(zip(columns, texts, strict=True)), remedy)


def drawn_jobs(seed: int, jobs: int = 60, between_s: float = 60.0) -> str:
    """Returns a CSV file of jobs in the columns of `pai_task_table`, one task each.

    They come as a Poisson process. Their seconds are log-normal with a median of 600 s and a standard deviation of
    1.5 of the logarithm: few are very long. Half of them ask for 8 to 24 cores and 40 to 160 GiB beside each device,
    as jobs on images do, the others for 1 to 4 cores and 4 to 32 GiB. They ask for 1, 2, 4 or 8 devices, half for 1.
    `between_s` are the mean seconds between two arrivals.
    """
    checks.count("drawn jobs", "jobs", jobs)
    checks.positive("drawn jobs", "between_s", between_s)
    draw, at_s, rows = np.random.default_rng(seed), 0.0, []
    for number in range(jobs):
        at_s += draw.exponential(between_s)
        seconds, heavy = draw.lognormal(np.log(600.0), 1.5), draw.random() < 0.5
        devices = int(draw.choice((1, 2, 4, 8), p=(0.5, 0.2, 0.2, 0.1)))
        cores, memory = (draw.uniform(*ends) for ends in (((8, 24), (40, 160)) if heavy else ((1, 4), (4, 32))))
        rows.append((f"job-{seed}-{number}", "worker", devices, "Terminated", f"{at_s:.1f}", f"{at_s + seconds:.1f}",
                     f"{100 * cores:.0f}", f"{memory:.3f}", 100, "V100"))  # fmt: skip
    return _text(_JOB_COLUMNS, rows)


def drawn_hosts(seed: int, hosts: int, until_s: float, per_s: float, back_after_s: float) -> str:
    """Returns a CSV file of hosts in the columns of `machine_meta`: each is lost `per_s` times a second that it is
    there, until `until_s`, and comes back after `back_after_s` on the mean; both times are exponential.
    """
    checks.count("drawn hosts", "hosts", hosts)
    for field, value in (("until_s", until_s), ("per_s", per_s), ("back_after_s", back_after_s)):
        checks.positive("drawn hosts", field, value)
    draw, rows = np.random.default_rng(seed), []
    for host in range(hosts):
        changes, at_s = [(0.0, "USING")], draw.exponential(1 / per_s)
        while at_s <= until_s:
            back_s = at_s + draw.exponential(back_after_s)
            changes += [(at_s, "OFFLINE"), (back_s, "USING")]
            at_s = back_s + draw.exponential(1 / per_s)
        rows += [(f"machine-{host}", f"{time_s:.1f}", host, host, 64, 100, status) for time_s, status in changes]
    return _text(_HOST_COLUMNS, rows)


def _text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([columns, *rows])
    return text.getvalue()
