"""Traces that are drawn, in the columns of Alibaba's: anyone can run what takes one."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

import numpy as np

from alpa_dejavu.playground.jobs._columns import HOST_COLUMNS, JOB_COLUMNS
from alpa_dejavu.problem import checks

__all__ = ["drawn_hosts", "drawn_jobs"]

_DEVICES, _DEVICE_SHARES = (1, 2, 4, 8), (0.5, 0.2, 0.2, 0.1)
_MEDIAN_S, _SIGMA = 600.0, 1.5
_HEAVY = 0.5
"""The share of jobs that ask for many cores and much memory beside a device, as those on images do."""
_CORES, _GIBIBYTES = {True: (8.0, 24.0), False: (1.0, 4.0)}, {True: (40.0, 160.0), False: (4.0, 32.0)}


def drawn_jobs(seed: int, jobs: int = 60, between_s: float = 60.0) -> str:
    """Returns a CSV file of jobs in the columns of `pai_task_table`, one task each.

    They come as a Poisson process. Their seconds are log-normal with a median of 600 s and a standard deviation of
    1.5 of the logarithm: few are very long. Half of them ask for 8 to 24 cores and 40 to 160 GiB beside each device,
    as jobs on images do, the others for 1 to 4 cores and 4 to 32 GiB. They ask for 1, 2, 4 or 8 devices, half for 1.

    Args:
        seed: of all that is drawn.
        jobs: how many.
        between_s: mean seconds between two arrivals.
    """
    checks.count("drawn jobs", "jobs", jobs)
    checks.positive("drawn jobs", "between_s", between_s)
    draw, at_s, rows = np.random.default_rng(seed), 0.0, []
    for number in range(jobs):
        at_s += draw.exponential(between_s)
        seconds, heavy = draw.lognormal(np.log(_MEDIAN_S), _SIGMA), bool(draw.random() < _HEAVY)
        devices = int(draw.choice(_DEVICES, p=_DEVICE_SHARES))
        cores, memory = draw.uniform(*_CORES[heavy]), draw.uniform(*_GIBIBYTES[heavy])
        rows.append((f"job-{seed}-{number}", "worker", devices, "Terminated", f"{at_s:.1f}", f"{at_s + seconds:.1f}",
                     f"{100 * cores:.0f}", f"{memory:.3f}", 100, "V100"))  # fmt: skip
    return _text(JOB_COLUMNS, rows)


def drawn_hosts(seed: int, hosts: int, until_s: float, per_s: float, back_after_s: float) -> str:
    """Returns a CSV file of hosts in the columns of `machine_meta`: each is lost at a rate, and comes back.

    Args:
        seed: of all that is drawn.
        hosts: how many.
        until_s: nothing is lost later.
        per_s: losses of a host per second that it is there.
        back_after_s: mean seconds until it is back; both times are exponential.
    """
    checks.count("drawn hosts", "hosts", hosts)
    for field, value in (("until_s", until_s), ("per_s", per_s), ("back_after_s", back_after_s)):
        checks.positive("drawn hosts", field, value)
    draw, rows = np.random.default_rng(seed), []
    for host in range(hosts):
        rows.append(_host_row(host, 0.0, "USING"))
        at_s = draw.exponential(1 / per_s)
        while at_s <= until_s:
            back_s = at_s + draw.exponential(back_after_s)
            rows += [_host_row(host, at_s, "OFFLINE"), _host_row(host, back_s, "USING")]
            at_s = back_s + draw.exponential(1 / per_s)
    return _text(HOST_COLUMNS, rows)


def _host_row(host: int, at_s: float, status: str) -> tuple[object, ...]:
    return f"machine-{host}", f"{at_s:.1f}", host, host, 64, 100, status


def _text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([columns, *rows])
    return text.getvalue()
