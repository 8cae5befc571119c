"""What happens in fresh processes: first calls, and the memory that a solution takes."""

from __future__ import annotations

import dataclasses
import resource
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, final

from alpa_dejavu._util import units
from alpa_dejavu._util.child_process import child_process
from alpa_dejavu.problem import Slicing
from slicers._problems import SIZED, sized

_PATIENCE_S = 600.0


def cold_s(name: str, size: str) -> float:
    """Seconds of importing, compiling and solving a problem of `SIZED` once, in a fresh process.

    Args:
        name: of a slicer, or of one of Alpa's programs.
        size: of the problem.
    """
    seconds: float = _asked(_first_call, name, size)
    return seconds


@final
@dataclasses.dataclass(frozen=True)
class Alone:
    """A slicer's answer in a fresh process; what it compiles was compiled for a smaller problem.

    Attributes:
        seconds: of wall time; those of the second call, if the first took less than 5.
        cpu_s: what the process had of the machine meanwhile.
        answer: of the slicer.
        most_bytes: the most that the process had in memory.
    """

    seconds: float
    cpu_s: float
    answer: Slicing
    most_bytes: float


def alone(size: str) -> Alone:
    """`dynamic` on a problem of `SIZED`."""
    answer: Alone = _asked(_alone, size)
    return answer


def _asked(serve: Any, *arguments: str) -> Any:
    with child_process(serve, *arguments, name="cold", patience_s=1.0) as connection:
        if not connection.poll(_PATIENCE_S):
            asked, most = " ".join(arguments), units.seconds(_PATIENCE_S)
            raise RuntimeError(f"{asked} took more than {most} in a process of its own")
        return connection.recv()


def _first_call(connection: Connection, name: str, size: str) -> None:
    problem = sized(size)
    started = time.perf_counter()
    if name.startswith("training_dp"):
        from slicers._alpa import solve

        solve(name, problem)
    else:
        from alpa_dejavu.slicing import slicer

        slicer(name).slice(problem)
    connection.send(time.perf_counter() - started)


def _alone(connection: Connection, size: str) -> None:
    from alpa_dejavu.slicing import slicer

    dynamic = slicer("dynamic")
    dynamic.slice(sized(next(iter(SIZED))))
    problem = sized(size)
    for _ in range(2):
        started, cpu = time.perf_counter(), time.process_time()
        answer = dynamic.slice(problem)
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu
        if seconds > 5:
            break
    connection.send(Alone(seconds, cpu_s, answer, _most_bytes()))


def _most_bytes() -> float:
    """Of this process since it began. What `getrusage` says has its parent's in it, from before the program began."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return 1024.0 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return float(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
