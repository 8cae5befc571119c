"""Media that links share: a switch on which disjoint pairs slow each other down, or a host's network card."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias, final

from alpa_dejavu.calibration._probe_links import CONTENDED, Pair, Prober, Round, even_rates

_PEERS, _SAMPLES = 4, 2
_Part: TypeAlias = tuple[set[int], set[int]]
"""Hosts that send over a medium, and hosts that receive."""


@final
@dataclasses.dataclass(frozen=True)
class Shared:
    """A medium that links share: its name, the pairs of hosts that they join, and the bytes per second of all."""

    name: str
    pairs: frozenset[Pair]
    bytes_per_s: float


def switches(contended: Collection[Pair], probed: Sequence[Round], nets: Round) -> list[Shared]:
    """Returns the switches that links share: media on which disjoint pairs of hosts get lower rates while others send.

    Slowed pairs share one medium if they send from or to the same host, or a chain of such pairs joins them: so the two
    directions of a cut between islands are two media, and a switch between all hosts is one. Slowed pairs of one round
    that nothing else can have slowed down share one, too. Every link from a sender to a receiver of a medium belongs to
    it.
    """
    media = []
    for sources, targets in _joined(contended, probed):
        pairs = frozenset((a, b) for a in sources for b in targets if a != b)
        rates_of_rounds = [
            [net.bytes_per_s for pair, net in nets_of_round.items() if pair in pairs] for nets_of_round in probed
        ]
        loads = [sum(rates) for rates in rates_of_rounds if len(rates) > 1]
        most = max(nets[pair].bytes_per_s for pair in pairs)
        media.append(Shared("", pairs, max(statistics.median_low(loads), most) if loads else most))
    sizes = even_rates([medium.bytes_per_s for medium in media])
    return [
        Shared(f"switch {n}", medium.pairs, size) for n, (medium, size) in enumerate(zip(media, sizes, strict=True))
    ]


def _joined(pairs: Collection[Pair], probed: Sequence[Round]) -> list[_Part]:
    """Connected parts of the graph that has each host once as a source and once as a target."""
    parts: list[_Part] = []
    for a, b in sorted(pairs):
        touched = [part for part in parts if a in part[0] or b in part[1]]
        parts = _merged(parts, [*touched, ({a}, {b})])
    for nets in probed:
        slowed = [pair for pair in nets if pair in pairs]
        lonely = [
            part
            for part in parts
            if _within(part, slowed) and max(_within(part, nets_of_round) for nets_of_round in probed) < 2
        ]
        parts = _merged(parts, lonely) if lonely else parts
    return parts


def _merged(parts: Sequence[_Part], some: Sequence[_Part]) -> list[_Part]:
    """The parts, with some of them as one."""
    merged = set[int]().union(*(part[0] for part in some)), set[int]().union(*(part[1] for part in some))
    return [*(part for part in parts if part not in some), merged]


def _within(part: _Part, pairs: Iterable[Pair]) -> int:
    """Returns how many of some pairs go from a sender of a part to one of its receivers."""
    return sum(a in part[0] and b in part[1] for a, b in pairs)


def probe_cards(prober: Prober, nets: Round, media: Sequence[Shared]) -> list[Shared]:
    """Probes network cards, and returns as media those over which several links carry less than each alone, known
    switches aside: several hosts send to one, and one to several. Of hosts with alike links some are probed.
    """
    count = len(prober.names)
    if count < 3:
        return []
    kinds: dict[tuple[float, ...], list[int]] = {}
    for host in range(count):
        rates = [nets[pair].bytes_per_s for pair in nets if host in pair]
        kinds.setdefault(tuple(sorted(rates)), []).append(host)
    cards: list[tuple[str, frozenset[Pair], list[float]]] = []
    for hosts in kinds.values():
        for receiving in (True, False):
            sample = hosts[:: -(-len(hosts) // _SAMPLES)]
            loads = [_load(prober, nets, media, host, receiving) for host in sample]
            slowed = [load for load in loads if load is not None]
            if len(slowed) * 2 > len(loads):
                for host in hosts:
                    name = f"to {prober.names[host]}" if receiving else f"from {prober.names[host]}"
                    cards.append((name, frozenset(pair for pair in nets if pair[receiving] == host), slowed))
    sizes = even_rates([statistics.fmean(slowed) for _, _, slowed in cards])
    return [Shared(name, pairs, size) for (name, pairs, _), size in zip(cards, sizes, strict=True)]


def _load(prober: Prober, nets: Round, media: Sequence[Shared], host: int, receiving: bool) -> float | None:
    """Returns the rate of a host's best links together; None for less than two, or if none slows another down."""
    mine = [pair for pair in nets if pair[receiving] == host]
    best = max(nets[pair].bytes_per_s for pair in mine)
    # As good as the best: all are done at the same time, as far as what they share allows it.
    pairs = [pair for pair in mine if nets[pair].bytes_per_s * CONTENDED > best][:_PEERS]
    if len(pairs) < 2:
        return None
    combined = prober.combined(pairs)
    expected = sum(nets[pair].bytes_per_s for pair in pairs)
    for medium in media:
        over = sum(nets[pair].bytes_per_s for pair in pairs if pair in medium.pairs)
        expected -= max(over - medium.bytes_per_s, 0.0)
    return max(combined, best) if expected > CONTENDED * combined else None
