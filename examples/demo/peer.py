"""The same job with the plan of Alpa's own AutoStageOption, in a process and on a Ray cluster of its own.

Two plans can't hold the devices of one cluster at the same time. Here each has its own, and they take turns: while one
runs its steps the other waits, so both meet the machine in the same moods.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from alpa_dejavu._util.child_process import child_process
from demo.training import Job

__all__ = ["PARTS", "Peer", "paired_rounds", "peer"]

PARTS = ("compilation", "profiling", "dp")
"""Of AutoStageOption's planning, as Alpa's timers have them; the rest is its `get_compute_cost` around them."""

_PATIENCE_S = 30.0


class Peer:
    """The driver's end of the other process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ask(self, steps: int) -> Any:
        """Has `steps` steps trained; seconds of each."""
        self._connection.send(steps)
        return self.answer()

    def answer(self) -> Any:
        """What the other process says next.

        Raises:
            RuntimeError: it ended without an answer; its error is on the terminal.
        """
        try:
            return self._connection.recv()
        except EOFError:
            raise RuntimeError("the process that trains with AutoStageOption ended: see its error above") from None


@contextlib.contextmanager
def peer(job: Job) -> Iterator[Peer]:
    """Starts the other process, which plans at once: its first answer is what the plan is and how long it took."""
    with child_process(_serve, job, name="AutoStageOption", patience_s=_PATIENCE_S) as connection:
        yield Peer(connection)


def _serve(connection: Connection, job: Job) -> None:
    import alpa
    from alpa.timer import timers

    from alpa_dejavu.alpa.local_cluster import local_cluster
    from demo.session import Session

    # AutoStageOption leaves its profile in the working directory.
    with tempfile.TemporaryDirectory() as directory, local_cluster(devices=job.devices):
        os.chdir(directory)
        alpa.init("ray")
        session = Session(job, alpa.AutoStageOption())
        session.compile()
        session.step()
        connection.send(
            {
                "planning_s": session.planning_s,
                "compile_s": session.compile_s,
                "parts_s": {part: timers(f"stage-construction-{part}").elapsed("sum") for part in PARTS},
                "plan": _last_plan(),
            }
        )
        while True:
            try:
                steps = connection.recv()
            except EOFError:
                return
            for _ in range(steps):
                session.step()
            connection.send(session.step_s[-steps:])


def _last_plan() -> dict[str, Any]:
    from alpa.pipeline_parallel.stage_construction import get_last_dp_result

    _, layers, submeshes, logical, options = get_last_dp_result()
    return {
        "stages": [
            {"layers": list(map(int, ids)), "submesh": list(map(int, submesh)), "logical_mesh": list(map(int, shape))}
            for ids, submesh, shape in zip(layers, submeshes, logical, strict=True)
        ],
        "options": [dict(option) for option in options],
    }


def paired_rounds(ours: list[list[float]], theirs: list[list[float]]) -> float:
    """The median, over rounds, of our seconds over theirs: below 1 ours is faster.

    Examples:
        >>> paired_rounds([[1.0, 1.0], [3.0]], [[2.0, 2.0], [2.0]])
        1.0
    """
    return statistics.median(sum(a) / len(a) / (sum(b) / len(b)) for a, b in zip(ours, theirs, strict=True))
