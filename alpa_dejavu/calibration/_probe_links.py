"""Every pair of hosts probed, in rounds of disjoint pairs; and which links slow each other down."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu._util import units
from alpa_dejavu.calibration.bench import BETWEEN, Flows, MeasurementError, Probe, ProbePlace
from alpa_dejavu.calibration.measurements import Measurement, Measurements
from alpa_dejavu.problem import Link

PLACE = ProbePlace("links", BETWEEN)
_RATE_TOLERANCE, _LATENCY_TOLERANCE = 0.1, 0.5
_CALL_S = 1e-4
"""The seconds that any message takes to start: latencies are told apart where they make a difference to that, too."""
CONTENDED = 1.25
"""A pair is slowed down by others, and not by noise, if it is so many times faster alone than beside them."""
_SIZES = (1 << 16, 1 << 19, 1 << 22, 1 << 25)
_LONGEST_S = 0.25
_SLOPE = 0.1
"""The share of a message's seconds by which it must take longer than the one before for a rate to follow from that."""
_FEW_HOSTS = 4
"""Up to so many hosts have few enough pairs for all of them to be probed."""
_CLASSES, _SAMPLES = 6, 2

Pair: TypeAlias = tuple[int, int]
"""The indices of a host that sends and of one that receives."""


Round: TypeAlias = Mapping[Pair, Link]
"""The latency and rate, for one message at a time, of the network between each of some pairs that send together."""


@final
class Prober:
    """A prober that times messages of growing sizes between pairs of hosts by `run`, each once."""

    def __init__(
        self,
        run: Callable[[Probe], Mapping[str, float]],
        measurements: Measurements,
        names: Sequence[str],
        progress: Callable[[str], None],
    ) -> None:
        self._run, self._measurements, self.names, self._progress = run, measurements, names, progress

    def nets_of(self, pairs: Sequence[Pair]) -> dict[Pair, Link]:
        """Returns each pair's latency and rate while all pairs send: that at which the largest messages send the bytes
        that they have more than the next smaller ones. MeasurementError says which can't be measured.
        """
        before = self._seconds(pairs, 1)
        latency = {pair: seconds / 2 for pair, seconds in before.items()}
        rate: dict[Pair, float] = {}
        left, sent = list(pairs), 1
        for size in _SIZES:
            now = self._seconds(left, size)
            for pair in left:
                more = now[pair] - before[pair]
                rate[pair] = (size - sent) / more if more > _SLOPE * now[pair] else size / now[pair]
            left = [pair for pair in left if now[pair] * _SIZES[1] / _SIZES[0] <= _LONGEST_S]
            before, sent = now, size
            if not left:
                break
        return {pair: Link(latency[pair], rate[pair]) for pair in pairs}

    def combined(self, pairs: Sequence[Pair]) -> float:
        """Returns the bytes per second that pairs have together while all send equally much, until the last is done."""
        before, sent = max(self._seconds(pairs, 1).values()), 1
        for size in _SIZES:
            now = max(self._seconds(pairs, size).values())
            more = now - before
            rate = len(pairs) * ((size - sent) / more if more > _SLOPE * now else size / now)
            if now * _SIZES[1] / _SIZES[0] > len(pairs) * _LONGEST_S:
                break
            before, sent = now, size
        return rate

    def _seconds(self, pairs: Sequence[Pair], num_bytes: int) -> dict[Pair, float]:
        probe = Flows(tuple(pairs), num_bytes)
        seconds = self._measurements.at(PLACE).get(probe)
        if seconds is None:
            first, second = (self.names[end] for end in pairs[0])
            more = f" and {len(pairs) - 1} more pairs" if len(pairs) > 1 else ""
            sent = units.exact_bytes(num_bytes)
            self._progress(f"{first} to {second}{more}, {sent}")
            seconds = self._run(probe)
            for name, (a, b) in zip(probe.names, pairs, strict=True):
                if not (math.isfinite(seconds[name]) and seconds[name] > 0):
                    raise MeasurementError(
                        f"{sent} from {self.names[a]!r} to {self.names[b]!r} took {units.seconds(seconds[name])}"
                    )
            self._measurements.add(Measurement(PLACE, probe, seconds))
        return {pair: seconds[name] for pair, name in zip(pairs, probe.names, strict=True)}


def rounds(count: int) -> list[list[Pair]]:
    """Returns rounds of disjoint pairs of `count` hosts, in which each pair occurs once: count - 1, or count if that is
    odd, by the circle method (Kirkman, On a problem in combinations, Cambridge and Dublin Mathematical Journal 2,
    1847).

    >>> rounds(4)
    [[(0, 3), (1, 2)], [(0, 2), (3, 1)], [(0, 1), (2, 3)]]
    """
    seats: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    listed = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        listed.append([(a, b) for a, b in facing if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return listed


def probe_all(prober: Prober, equal: bool) -> list[Round]:
    """Probes pairs of hosts in rounds of disjoint pairs, in both directions; returns each pair's latency and rate.
    Among equal hosts only about the logarithm of their number of rounds, drawn by a seed, is needed, if all pairs
    agree.
    """
    count = len(prober.names)
    listed = rounds(count)
    order = np.random.default_rng(count).permutation(len(listed))
    enough = math.ceil(math.log2(count)) + 1 if equal and count > _FEW_HOSTS else len(listed)
    probed: list[Round] = []
    for n, chosen in enumerate(order.tolist()):
        if n == enough and _agree(probed):
            break
        for way in (listed[chosen], [(b, a) for a, b in listed[chosen]]):
            probed.append(prober.nets_of(way))
    return probed


def _agree(probed: Sequence[Round]) -> bool:
    nets = [net for nets_of_round in probed for net in nets_of_round.values()]
    evened = even_rates([net.bytes_per_s for net in nets]), even_latencies([net.latency_s for net in nets])
    return all(len(set(values)) == 1 for values in evened)


def even_rates(rates: Sequence[float]) -> list[float]:
    """Returns the links' rates, with those made equal that differ by noise alone."""
    return grouped(rates, _RATE_TOLERANCE).tolist()


def even_latencies(latencies_s: Sequence[float]) -> list[float]:
    """Returns the links' latencies, with those made equal that differ by noise alone, or hardly matter."""
    started = np.asarray(latencies_s) + _CALL_S
    return (grouped(started, _LATENCY_TOLERANCE) - _CALL_S).tolist()


@final
@dataclasses.dataclass(frozen=True)
class Alone:
    """The links that pairs of hosts have when they send alone, and the pairs that are slower while others send."""

    nets: Mapping[Pair, Link]
    contended: frozenset[Pair]


def probe_alone(prober: Prober, probed: Sequence[Round]) -> Alone:
    """Probes some pairs alone, a few of each earlier rate; if they are faster, all of that rate are taken to be."""
    nets_before = {pair: net for nets_of_round in probed for pair, net in nets_of_round.items()}
    company = [pair for nets_of_round in probed for pair in nets_of_round if len(nets_of_round) > 1]
    if not company:
        return Alone(nets_before, frozenset())
    values = even_rates([nets_before[pair].bytes_per_s for pair in company])
    classes: dict[float, list[Pair]] = {}
    for pair, value in zip(company, values, strict=True):
        classes.setdefault(value, []).append(pair)
    nets, contended = dict(nets_before), set[Pair]()
    for value in sorted(classes, key=lambda value: len(classes[value]), reverse=True)[:_CLASSES]:
        pairs = classes[value]
        sample = [pairs[n] for n in sorted({0, len(pairs) // 2})][:_SAMPLES]
        alone = {pair: prober.nets_of([pair])[pair] for pair in sample}
        ratio = statistics.median(alone[pair].bytes_per_s / nets_before[pair].bytes_per_s for pair in sample)
        if ratio > CONTENDED:
            contended |= set(pairs)
            latency_s = statistics.median_low(net.latency_s for net in alone.values())
            nets |= {pair: Link(min(nets[pair].latency_s, latency_s), nets[pair].bytes_per_s * ratio) for pair in pairs}
            nets |= alone
    return Alone(nets, frozenset(contended))


def settled(nets: Mapping[Pair, Link], count: int) -> dict[Pair, Link]:
    """Returns the latency and rate of each pair of hosts, made equal but for noise; unprobed ones have the median."""
    rates = even_rates([net.bytes_per_s for net in nets.values()])
    latencies = even_latencies([net.latency_s for net in nets.values()])
    even = {pair: Link(*both) for pair, both in zip(nets, zip(latencies, rates, strict=True), strict=True)}
    usual = Link(statistics.median_low(latencies), statistics.median_low(rates))
    every = ((a, b) for a in range(count) for b in range(count) if a != b)
    return {pair: even.get(pair, usual) for pair in every}


_WIDEST = 3.0
"""A group reaches over so many tolerances: noise spreads, but a row of small steps doesn't become one value."""


def grouped(values: ArrayLike, tolerance: float) -> NDArray[np.float64]:
    """Returns the values, shape (N,), each replaced by the median of the group of values near to it: of two middle ones
    the lower. ValueError for one that isn't finite and above zero.

    Neighbours in order of size are of one group if they are apart by no more than the tolerance, a fraction. A group
    that gets too wide is cut at its largest gap.

    >>> grouped([1.0, 5.0, 1.04, 0.97], 0.1).tolist()
    [1.0, 5.0, 1.0, 1.0]
    """
    positive = np.asarray(values, dtype=np.float64)
    if not (np.isfinite(positive) & (positive > 0)).all():
        raise ValueError(f"measured values are {positive.tolist()}, but must be finite and above 0; measure them again")
    order = np.argsort(positive, kind="stable")
    medians = np.empty_like(positive)
    waiting = [order] if len(order) else []
    while waiting:
        part = waiting.pop()
        gaps = np.diff(np.log(positive[part]))
        wide = np.log(positive[part[-1]] / positive[part[0]]) > _WIDEST * math.log1p(tolerance)
        if len(gaps) and (gaps.max() > math.log1p(tolerance) or wide):
            cut = int(np.argmax(gaps)) + 1
            waiting += [part[:cut], part[cut:]]
        else:
            medians[part] = positive[part[(len(part) - 1) // 2]]
    return medians
