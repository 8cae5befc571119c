"""Events of a simulated step: each thing that a stage does, sends or waits for, with its start and its end."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BACKWARD", "BUBBLE", "COLLECTIVE", "FORWARD", "KINDS", "SEND", "UPDATE", "Event", "Track", "rows_of",
]  # fmt: skip

KINDS = ("forward", "backward", "collective", "send", "update", "bubble")
FORWARD, BACKWARD, COLLECTIVE, SEND, UPDATE, BUBBLE = range(6)

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@final
@dataclasses.dataclass(frozen=True)
class Event:
    """One thing that a stage does during a simulated step, or that it waits ("bubble").

    Attributes:
        stage: the index of the stage; for "send", of the one that sends.
        kind: "forward", "backward", "collective", "send", "update" or "bubble".
        micro_batch: its number, from 0; -1 for "update" and "bubble".
        start_s, end_s: when it starts and ends, in seconds from the step's start.
        receiver: the stage that a "send" goes to, otherwise None.
    """

    stage: int
    kind: str
    micro_batch: int
    start_s: float
    end_s: float
    receiver: int | None = None


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Track:
    """The events of a simulated step (what stages do, and when) as columns of shape (number of events,), ordered by
    stage, then by start.

    `kind` is an index into `KINDS`: "forward", "backward", "collective", "send", "update", "bubble". `receiver` is the
    stage that a "send" goes to, else -1.
    """

    stage: IntArray
    kind: IntArray
    micro_batch: IntArray
    receiver: IntArray
    start_s: FloatArray
    end_s: FloatArray

    def __len__(self) -> int:
        return len(self.stage)


def rows_of(
    stage: IntArray, kind: int, batch: IntArray | int, receiver: IntArray | int, start: FloatArray, end: FloatArray
) -> FloatArray:
    """Returns columns of events as an array of shape (6, number); NaN where there is no event."""
    whole = [np.broadcast_to(np.asarray(x, dtype=np.float64), stage.shape) for x in (stage, kind, batch, receiver)]
    return np.stack([*whole, start, end])
