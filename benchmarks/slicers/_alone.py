"""`dynamic` on large problems, each in a fresh process: time, memory, and whether the answer is exact."""

from __future__ import annotations

import dataclasses
import time
from typing import final

from tqdm import tqdm

from alpa_dejavu._util.units import seconds, size
from alpa_dejavu.problem import Slicing
from harness import Figure, asked_within, peak_bytes
from slicers._figure import Part, Scale
from slicers._problems import SIZED, sized

AIMS = {"64/512": (1.0, None), "64/512 noisy": (1.0, None), "256/4096": (30.0, 2.0**32)}
"""By layers and devices: seconds, and GiB."""
GAP = 1e-3
_PATIENCE_S = 600.0


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


def measured(scale: Scale) -> Part:
    """Each in a process of its own, compiled beforehand."""
    figures, rows = [], []
    for name in tqdm(scale.alone, "alone"):
        one: Alone = asked_within(_PATIENCE_S, _alone, name, ready_s=_PATIENCE_S)
        found = one.answer
        most_s, most_bytes = AIMS.get(name, (1.0, None))
        said = f"{seconds(one.seconds)} ({seconds(one.cpu_s)} of one core)"
        figures.append(Figure("dynamic", name, f"under {seconds(most_s)}", said, one.seconds < most_s))
        if most_bytes is not None:
            held = one.most_bytes < most_bytes
            figures.append(Figure("dynamic", name, f"under {size(most_bytes)}", size(one.most_bytes), held))
        said = "exact" if found.gap == 0 else f"gap {100 * found.gap:.2g} %"
        figures.append(Figure("dynamic", name, f"exact, or a gap under {100 * GAP:g} %", said, found.gap < GAP))
        rows.append(
            {"problem": name, "seconds": one.seconds, "cpu_s": one.cpu_s, "most_bytes": one.most_bytes}
            | {"cost_s": found.cost_s, "gap": found.gap, "stages": len(found.stages), "rounds": found.iterations}
        )
    return Part(tuple(figures), {"sizes": rows})


def cold_s(name: str, size: str) -> float:
    """Seconds of importing, compiling and solving a problem of `SIZED` once, in a fresh process.

    Args:
        name: of a slicer, or of one of Alpa's programs.
        size: of the problem.
    """
    seconds: float = asked_within(_PATIENCE_S, _first_call, name, size, ready_s=_PATIENCE_S)
    return seconds


def _first_call(name: str, size: str) -> float:
    problem = sized(size)
    started = time.perf_counter()
    if name.startswith("training_dp"):
        from slicers._alpa import solve

        solve(name, problem)
    else:
        from alpa_dejavu.slicing import slicer

        slicer(name).slice(problem)
    return time.perf_counter() - started


def _alone(size: str) -> Alone:
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
    return Alone(seconds, cpu_s, answer, peak_bytes())
