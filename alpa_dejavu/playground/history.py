"""The history of a simulated training, over virtual seconds, as files of runs have it, too."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Annotated, Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.dataclass_format import Elsewhere, Rare, Stored
from alpa_dejavu._util.format_fields import Bytes, Index, Seconds, Text, listed, stated

__all__ = ["COMPUTING", "FAILED", "SENDING", "TIMELINE", "History"]

COMPUTING, SENDING, FAILED = range(3)
TIMELINE = np.dtype([("worker", np.int32), ("kind", np.int32), ("other", np.int32), ("start_s", np.float64),
                     ("end_s", np.float64)])  # fmt: skip


def _with_nulls(values: NDArray[np.float64]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


_real, _whole = functools.partial(np.array, dtype=np.float64), functools.partial(np.array, dtype=np.int64)
_Floats: TypeAlias = NDArray[np.float64]
_Ints: TypeAlias = NDArray[np.int64]
_SECONDS = Stored(list[Seconds], _with_nulls, _real)
_NUMBERS = Stored(list[Annotated[float, stated("a number")]], _with_nulls, _real)
_NUMBERS_OR_NULLS = Stored(list[Annotated[float | None, stated("a number, or null")]], _with_nulls, _real)
_BYTES = Stored(list[Bytes], _with_nulls, _real)
_WHOLE = Stored(list[Index], np.ndarray.tolist, _whole)
_PAIRS = Stored(list[Annotated[list[Index], listed("a pair of hosts", min_length=2, max_length=2)]], np.ndarray.tolist,
                lambda pairs: np.reshape(_whole(pairs), (-1, 2)))  # fmt: skip
_Figures: TypeAlias = Annotated[
    _Floats, _NUMBERS_OR_NULLS, listed("a list of numbers or nulls, as many as its neighbours have")
]
_Counts: TypeAlias = Annotated[_Ints, _WHOLE, listed("a list of whole numbers, as many as its neighbours have")]
_BytesList: TypeAlias = Annotated[_Floats, _BYTES, listed("a list of bytes, as many as its neighbours have")]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class History:
    """A simulated training: E moments at which the model was looked at, totals of n workers, and what links carried.

    Attributes:
        end: why it ended: "steps", "time", "no worker is left", or "stalled: ..." with who waits for what.
        time_s: the moments in virtual seconds, shape (E,); the first is 0, the last the end.
        loss, accuracy: held-out loss and accuracy of the model at each moment, shape (E,): of the server's parameters,
            or of the mean of the workers'. Not a number where nothing is computed, or there are no classes.
        consensus: the root of the mean squared distance of the workers' parameters to their mean, shape (E,).
        steps: how many gradients had been applied or dropped, of all workers, shape (E,).
        samples: how many samples gradients had been computed of, shape (E,).
        sent_bytes: the bytes of all messages that had been sent at each moment, shape (E,).
        staleness: how many gradients were applied when the parameters were k versions newer than those that they were
            computed at, shape (K,), from k = 0.
        busy_s, idle_s: seconds that each worker computed, and didn't until the end, shape (n,).
        worker_steps: gradients that each worker computed, shape (n,).
        links: indices of the sending and of the receiving host of each link that was used, shape (L, 2).
        link_bytes, link_messages: the bytes and messages on each of these, shape (L,).
        lost_updates: gradients that were dropped, or whose worker was lost while it computed.
        timeline: the first intervals of workers' time, as many as were asked for, in the order in which they begin, a
            structured array of the dtype `TIMELINE`, shape (T,): who (`worker`), from when to when (`start_s`,
            `end_s`), and what (`kind`): `COMPUTING` a gradient, `SENDING` a message to the worker `other`, or `FAILED`.
        notes: what the exchange had to say, each once.
        violated_s: for each condition when it was first violated; None: it wasn't.
    """

    end: Text
    time_s: Annotated[_Floats, _SECONDS, listed("a list of seconds", min_length=1)]
    loss: _Figures
    accuracy: _Figures
    consensus: _Figures
    steps: _Counts
    samples: _Counts
    sent_bytes: _BytesList
    staleness: _Counts
    busy_s: Annotated[_Floats, _SECONDS, listed("a list of seconds, as many as its neighbours have")]
    idle_s: Annotated[_Floats, _NUMBERS, listed("a list of seconds, as many as its neighbours have")]
    worker_steps: _Counts
    links: Annotated[_Ints, _PAIRS, listed("a list of pairs of hosts")]
    link_bytes: _BytesList
    link_messages: _Counts
    lost_updates: Index
    params: Elsewhere[NDArray[np.float32]]
    timeline: Elsewhere[NDArray[Any]]
    notes: Rare[Annotated[tuple[Text, ...], listed("a list of texts")]] = ()
    violated_s: Rare[
        Annotated[tuple[Seconds | None, ...], listed("a list of seconds or nulls, as many as there are conditions")]
    ] = ()

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
        return _bits(self) == _bits(other)

    def seconds_to(self, loss: float) -> float:
        """Returns the first moment in seconds at which the held-out loss was at most so much; infinity if none was."""
        return float(min(self.time_s[self.loss <= loss], default=np.inf))


def _bits(history: History) -> list[object]:
    every = vars(history).values()
    return [(part.dtype, part.shape, part.tobytes()) if isinstance(part, np.ndarray) else part for part in every]
