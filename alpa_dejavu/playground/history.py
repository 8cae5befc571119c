"""The history of a simulated training, over virtual seconds."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

__all__ = ["COMPUTING", "FAILED", "SENDING", "TIMELINE", "History"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
COMPUTING, SENDING, FAILED = range(3)
TIMELINE = np.dtype([("worker", np.int32), ("kind", np.int32), ("other", np.int32), ("start_s", np.float64),
                     ("end_s", np.float64)])  # fmt: skip


@final
@dataclasses.dataclass(frozen=True, eq=False)
class History:
    """A simulated training: E moments at which the model was looked at, totals of n workers, and what links carried.

    Attributes:
        time_s: the moments in virtual seconds, shape (E,); the first is 0, the last the end.
        loss, accuracy: held-out loss and accuracy of the model at each moment, shape (E,): of the server's parameters,
            or of the mean of the workers'. Not a number where nothing is computed, or there are no classes.
        consensus: the root of the mean squared distance of the workers' parameters to their mean, shape (E,).
        steps: how many gradients had been applied or dropped, of all workers, shape (E,).
        samples: how many samples gradients had been computed of, shape (E,).
        staleness: how many gradients were applied when the parameters were k versions newer than those that they were
            computed at, shape (K,), from k = 0.
        busy_s, idle_s: seconds that each worker computed, and didn't until the end, shape (n,).
        worker_steps: gradients that each worker computed, shape (n,).
        lost_updates: gradients that were dropped, or whose worker was lost while it computed.
        links: indices of the sending and of the receiving host of each link that was used, shape (L, 2).
        link_bytes, link_messages: the bytes and messages on each of these, shape (L,).
        params: the model at the end, shape (P,).
        end: why it ended: "steps", "time", "no worker is left", or "stalled: ..." with who waits for what.
        sent_bytes: the bytes of all messages that had been sent at each moment, shape (E,).
        timeline: the first intervals of workers' time, as many as were asked for, in the order in which they begin, a
            structured array of the dtype `TIMELINE`, shape (T,): who (`worker`), from when to when (`start_s`,
            `end_s`), and what (`kind`): `COMPUTING` a gradient, `SENDING` a message to the worker `other`, or `FAILED`.
        notes: what the exchange had to say, each once.
        violated_s: for each condition when it was first violated; None: it wasn't.
    """

    time_s: Floats
    loss: Floats
    accuracy: Floats
    consensus: Floats
    steps: Ints
    samples: Ints
    staleness: Ints
    busy_s: Floats
    idle_s: Floats
    worker_steps: Ints
    lost_updates: int
    links: Ints
    link_bytes: Floats
    link_messages: Ints
    params: NDArray[np.float32]
    end: str
    sent_bytes: Floats
    timeline: NDArray[Any]
    notes: tuple[str, ...] = ()
    violated_s: tuple[float | None, ...] = ()

    @property
    def end_s(self) -> float:
        """Returns the virtual seconds of the whole training."""
        return float(self.time_s[-1])

    @property
    def num_bytes(self) -> float:
        """Returns the bytes of all messages."""
        return float(self.link_bytes.sum())

    def same(self, other: History) -> bool:
        """Returns whether another history is this one to the bit."""
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if isinstance(mine, np.ndarray):
                if mine.dtype != theirs.dtype or mine.shape != theirs.shape or mine.tobytes() != theirs.tobytes():
                    return False
            elif mine != theirs:
                return False
        return True

    def seconds_to(self, loss: float) -> float:
        """Returns the first moment in seconds at which the held-out loss was at most so much; infinity if none was."""
        reached = np.flatnonzero(self.loss <= loss)
        return float(self.time_s[reached[0]]) if len(reached) else float("inf")
