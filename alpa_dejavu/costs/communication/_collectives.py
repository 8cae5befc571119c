"""Measured collectives as columns, the rows among them that can't be right, and seconds with 90 % intervals."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, final

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped

Array: TypeAlias = "Float[np.ndarray, ' rows']"
"""A figure of each of some measured collectives."""
_ENDS = (0.05, 0.95)
FILLED_IN = "exactly twice the time of half the size"
"""The reason to leave a row out that wasn't measured."""
_SAME = 1e-9
_FALLS = 0.75


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Collectives:
    """A table of measured collectives as columns; in a row several equal groups may run at the same time."""

    name: Shaped[np.ndarray, " rows"]  # all_reduce, all_gather, reduce_scatter or all_to_all
    # The bytes of the whole tensor: what each device holds before an all-reduce or a reduce-scatter, and after an all-
    # gather; what all devices together hold for an all-to-all
    num_bytes: Array
    size: Array  # how many devices are in a group
    hosts: Array  # how many hosts a group spans
    sharing: Array  # how many groups share the network of a host
    # Bytes per second that a device has to the others of its group (within a host), or a host to other hosts
    lanes: Array

    def take(self, index: Bool[np.ndarray, " rows"] | Int[np.ndarray, " some"]) -> Collectives:
        """Returns the table with only some of its measured collectives, chosen by a boolean mask or by indices."""
        return Collectives(*(getattr(self, field.name)[index] for field in dataclasses.fields(self)))

    @property
    def across(self) -> Bool[np.ndarray, " rows"]:
        """Returns which collectives run in groups that span several hosts."""
        return self.hosts > 1

    @property
    def volume_s(self) -> Array:
        """Returns the seconds that each collective's bytes take at the full rate of the narrowest link.

        Rings of n devices pass (n-1)/n of the tensor through each device and out of each host, an all-reduce twice; for
        an all-reduce across hosts n is the number of hosts, as with trees. In an all-to-all each device sends its share
        to the others, and a host what its devices send out.
        """
        summed = self.name == "all_reduce"
        parts = np.where(self.across & summed, self.hosts, self.size)
        ring = np.where(summed, 2.0, 1.0) * (parts - 1) / parts
        per_host = self.size / self.hosts
        sent = np.where(self.across, per_host * (self.size - per_host), self.size - 1) / self.size**2
        volume = np.where(self.name == "all_to_all", sent, ring) * self.num_bytes
        return np.asarray(volume * np.where(self.across, self.sharing, 1) / self.lanes)

    @property
    def hops(self) -> tuple[Array, Array]:
        """Returns how many messages each collective sends one after the other: between hosts, and within them. In an
        all-to-all a device sends to all others in turn.
        """
        rounds = np.where(self.name == "all_reduce", 2.0, 1.0)
        per_host = self.size / self.hosts
        leaving = np.where(self.across, self.hosts * (self.size - 1) / self.size, 0.0)
        ring = rounds * leaving, rounds * (self.size - 1 - leaving)
        exchange = self.size - per_host, per_host - 1
        exchanged = self.name == "all_to_all"
        return np.where(exchanged, exchange[0], ring[0]), np.where(exchanged, exchange[1], ring[1])

    def __len__(self) -> int:
        return len(self.name)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class PredictedSeconds:
    """Predicted seconds of some rows, and both ends of 90 % intervals; `in_domain` says which rows are like those that
    the model was fitted to.
    """

    mean: Array
    lower: Array
    upper: Array
    in_domain: Bool[np.ndarray, " rows"]

    @classmethod
    def of(
        cls, log_s: Array, ends: Float[np.ndarray, "#rows 2"], in_domain: Bool[np.ndarray, " rows"]
    ) -> PredictedSeconds:
        """Returns seconds from their logarithms and the errors that are added to these for both ends."""
        return cls(np.exp(log_s), np.exp(log_s + ends[..., 0]), np.exp(log_s + ends[..., 1]), in_domain)


def interval_ends(errors: Array) -> Float[np.ndarray, " 2"]:
    """Returns the lower and the upper end of the middle 90 % of some errors, widened to contain zero."""
    low, high = np.quantile(errors, _ENDS)
    return np.array([min(float(low), 0.0), max(float(high), 0.0)])


@final
@dataclasses.dataclass(frozen=True)
class Suspect:
    """A row of a profile of measured collectives that a fit leaves out: its index, and the reason."""

    row: int
    reason: str


def suspects(series: Sequence[object], num_bytes: Array, seconds: Array) -> list[Suspect]:
    """Returns the rows of a profile of collectives that a fit must leave out, each with the first reason that holds for
    it: times that aren't finite or above zero, sizes that can't be, repeated sizes, times that are exactly twice those
    of half the size (filled in by doubling), and times below three quarters of a smaller size's.

    `series` has what each row belongs to (the same collective, group and dtype).

    >>> suspects(["a"] * 4, np.array([1.0, 2, 4, 8]), np.array([1.0, 1.5, 3.0, np.inf]))
    [Suspect(row=2, reason='exactly twice the time of half the size'), Suspect(row=3, reason='not finite')]
    """
    reasons: dict[int, str] = {}
    for row, value in enumerate(seconds.tolist()):
        if not np.isfinite(value):
            reasons[row] = "not finite"
        elif value <= 0:
            reasons[row] = "not above zero"
        elif not (np.isfinite(num_bytes[row]) and num_bytes[row] >= 0):
            reasons[row] = "of no size"
    names = {name: code for code, name in enumerate(dict.fromkeys(series))}
    codes = np.array([names[name] for name in series])
    for code in range(len(names)):
        rows = np.array([row for row in np.flatnonzero(codes == code) if row not in reasons], dtype=np.int64)
        reasons |= _of_series(rows[np.argsort(num_bytes[rows], kind="stable")], num_bytes, seconds)
    return [Suspect(row, reasons[row]) for row in sorted(reasons)]


def summary(rows: Sequence[Suspect]) -> str:
    """Returns a line that says how many rows of a profile are left out for which reason.

    >>> summary([Suspect(3, "not finite"), Suspect(5, "not finite")])
    '2 not finite'
    """
    counted = Counter(suspect.reason for suspect in rows)
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counted.items())) or "none"


def _of_series(rows: Int[np.ndarray, " series"], num_bytes: Array, seconds: Array) -> dict[int, str]:
    """Returns the rows of a series to leave out, each with the reason; `rows` are in order of size."""
    reasons: dict[int, str] = {}
    times: dict[float, float] = {}
    longest = 0.0
    for row in rows.tolist():
        size, time = float(num_bytes[row]), float(seconds[row])
        half = times.get(size / 2)
        if half is not None and size > 0 and abs(time - 2 * half) <= _SAME * time:
            reasons[row] = FILLED_IN
        elif size in times:
            reasons[row] = "a size that was there already"
        elif time < _FALLS * longest:
            reasons[row] = "faster than a smaller size"
        else:
            longest = max(longest, time)
        times.setdefault(size, time)
    return reasons
