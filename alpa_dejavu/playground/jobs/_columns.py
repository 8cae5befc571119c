"""Rows of CSV files in the published columns of Alibaba's traces: read, and drawn."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import final

import numpy as np

from alpa_dejavu._util.json_file import csv_lines
from alpa_dejavu._util.near_names import near
from alpa_dejavu.problem import checks

__all__ = ["HOST_COLUMNS", "JOB_COLUMNS", "Cells", "drawn_hosts", "drawn_jobs", "read_rows"]

JOB_COLUMNS = ("job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem",
               "plan_gpu", "gpu_type")  # fmt: skip
HOST_COLUMNS = ("machine_id", "time_stamp", "failure_domain_1", "failure_domain_2", "cpu_num", "mem_size", "status")


@final
@dataclasses.dataclass(frozen=True)
class Cells:
    """The cells of a line by their columns.

    Attributes:
        where: the file and the line.
        cells: the texts.
        remedy: ends errors.
    """

    where: str
    cells: Mapping[str, str]
    remedy: str

    def text(self, column: str) -> str:
        """Returns the text of a column, which must not be empty."""
        cell = self.cells[column]
        if not cell:
            raise self.wrong(column, "but must not be empty")
        return cell

    def one_of(self, column: str, words: Sequence[str]) -> str:
        """Returns the text of a column, which must be one of some words."""
        cell = self.text(column)
        if cell not in words:
            raise self.wrong(column, f"but must be one of {', '.join(words)}{near(cell, words)}")
        return cell

    def number(self, column: str, empty: float | None = None, least: float = 0.0) -> float:
        """Returns the number of a column, which must be finite and not below the least one.

        Args:
            column: the column.
            empty: stands for no text; None: there must be some.
            least: the least number.
        """
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
        """Returns the error of a cell."""
        return ValueError(f"{self.where}: {column} is {self.cells[column]!r}, {must}; {self.remedy}")


def read_rows(path: pathlib.Path, columns: Sequence[str]) -> Iterator[Cells]:
    """Yields the lines of a CSV file, in their order, as cells by columns; a first line with their names is passed
    over.

    Raises:
        ValueError: the file can't be read, or a line has another number of cells than there are columns.
    """
    remedy = f"a line has {', '.join(columns)}, separated by commas: mend the line, or leave it out"
    for line, cells in csv_lines(path, remedy):
        texts = [cell.strip() for cell in cells]
        if not any(texts) or (line == 1 and texts == list(columns)):
            continue
        where = f"{path}, line {line}"
        if len(texts) != len(columns):
            raise ValueError(f"{where}: it has {len(texts)} cells, but must have {len(columns)}; {remedy}")
        yield Cells(where, dict(zip(columns, texts, strict=True)), remedy)


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
