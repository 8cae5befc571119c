"""When each task of a program starts and ends."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.compiled import compiled
from alpa_dejavu.simulation._program import BACKWARD_SEND, FORWARD_SEND, POSTS, START, StepProgram

__all__ = ["own_devices", "shared_cores"]

FloatArray = NDArray[np.float64]


def own_devices(program: StepProgram, seconds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns when each of N tasks starts and when it ends, in seconds, each of shape (N,), where each device has cores
    of its own: a task starts when those that it waits for have ended. `seconds`, shape (N,), are those that each task
    takes.
    """
    finished = _ends(program.waits, seconds)
    return finished[program.waits].max(axis=0), finished[:-1]


@compiled("(i8[:, ::1], f8[::1])", may_wait=True)
def _ends(waits: NDArray[np.int64], seconds: FloatArray) -> FloatArray:
    """Returns the end of each task, and 0 as the last entry: the one that -1, nothing to wait for, looks up."""
    ends = np.zeros(len(seconds) + 1)
    for n in range(len(seconds)):
        ends[n] = max(ends[waits[0, n]], ends[waits[1, n]], ends[waits[2, n]]) + seconds[n]
    return ends


def shared_cores(
    program: StepProgram,
    seconds: FloatArray,
    devices: NDArray[np.int64],
    apart: NDArray[np.bool_],
    cores: float,
    waiting: float,
) -> tuple[FloatArray, FloatArray]:
    """Returns when each task of a pipeline's step starts and when it ends, in seconds, each of shape (N,), where all
    devices share the cores of one CPU.

    Each device gets an even part: with c cores and n devices that compute at a time, each computes min(1, c / n) times
    as fast as with a core of its own; a stage of d devices counts d times. Devices of one process wait for each other,
    and others use the cores meanwhile, if there are any. A transfer, which a core copies, and its posting count as one
    device. Starts of stages take their time whoever computes.

    Args:
        program: the graph of the step's N tasks.
        seconds: shape (N,), the seconds that each task takes if no other one runs.
        devices: shape (S,), how many devices each of S stages has.
        apart: shape (S,), whether each device of the stage is a process of its own.
        cores: how many cores the CPU has.
        waiting: the share of its time that a device waits for others of its process.
    """
    size = len(program)
    kinds, stages = program.kind.tolist(), program.stage.tolist()
    weights = {START: 0, **dict.fromkeys((FORWARD_SEND, BACKWARD_SEND, *POSTS), 1)}
    weight = [weights.get(k, int(devices[s])) for k, s in zip(kinds, stages, strict=True)]
    threads = [w > 1 and not apart[s] for w, s in zip(weight, stages, strict=True)]
    before_it = [{n for n in group if n >= 0} for group in program.waits.T.tolist()]
    followers: list[list[int]] = [[] for _ in range(size)]
    for n, group in enumerate(before_it):
        for before in group:
            followers[before].append(n)
    left = seconds.tolist()
    starts, ends = np.zeros(size), np.zeros(size)
    running = [n for n, group in enumerate(before_it) if not group]
    now = 0.0
    while running:
        busy = sum(weight[n] for n in running)
        together = sum(weight[n] for n in running if threads[n])
        rate = _busy_cores(together, busy - together, cores, waiting) / busy if busy else 1.0
        speeds = [rate if weight[n] else 1.0 for n in running]
        passed = min(left[n] / speed for n, speed in zip(running, speeds, strict=True))
        now += passed
        done: list[int] = []
        still: list[int] = []
        for n, speed in zip(running, speeds, strict=True):
            finished = left[n] / speed <= passed
            left[n] -= passed * speed
            (done if finished else still).append(n)
        for n in done:
            ends[n] = now
            for follower in followers[n]:
                before_it[follower].discard(n)
                if not before_it[follower]:
                    starts[follower] = now
                    still.append(follower)
        running = still
    return starts, ends


@functools.cache
def _busy_cores(together: int, alone: int, cores: float, waiting: float) -> float:
    """How many cores are busy on average while so many devices compute together with others of their process, each of
    which waits that share of its time whatever the others do, and so many alone in theirs.
    """
    shares = np.ones(1)  # the binomial distribution of how many of them compute
    for _ in range(together):
        shares = np.convolve(shares, (waiting, 1 - waiting))
    return float(shares @ np.minimum(alone + np.arange(together + 1), cores))
