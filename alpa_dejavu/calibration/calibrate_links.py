"""A cluster's links from host to host: measured, settled, and as a part of a calibration."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from alpa_dejavu.calibration._calibration import Calibration
from alpa_dejavu.calibration._media import Shared, probe_cards, switches
from alpa_dejavu.calibration._probe_links import (
    PLACE,
    Pair,
    Prober,
    even_latencies,
    even_rates,
    probe_all,
    probe_alone,
    settled,
)
from alpa_dejavu.calibration.bench import MeasurementError, ProbeBench
from alpa_dejavu.calibration.calibrate import identity
from alpa_dejavu.calibration.measured_hosts import HostLinks
from alpa_dejavu.calibration.measurements import Measurements
from alpa_dejavu.calibration.parts import Fit
from alpa_dejavu.problem import Cluster, Link

_PART = "links from host to host"
_CPU = "cpu"
_LEAST_S = 1e-7
_EVEN = {
    "latency_s": even_latencies,
    "bytes_per_s": even_rates,
    "send_latency_s": even_latencies,
    "send_bytes_per_s": even_rates,
}


def links_identity(cluster: Cluster) -> dict[str, Any]:
    """Returns the data by which a cluster is recognised when measurements of links are used again."""
    return {**identity(cluster), "names": [host.name for host in cluster.hosts]}


def calibrate_links(
    cluster: Cluster,
    bench: ProbeBench,
    measurements: Measurements,
    name: str,
    before: Calibration | None = None,
    every_pair: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Calibration:
    """Measures the links between all pairs of hosts, or as many as show that all are alike, and the media that slow
    them down; returns the calibration `before` with these links, or a new one. ValueError for a single host or a rate
    that can't be right, RuntimeError for hosts that can't be reached, or take too long.

    Messages go by TCP between Ray's addresses of the hosts, one connection for a pair. On CPUs, and for sends by the
    runtime's transport, the seconds of the network are added to those of copying, which follow from the links known
    before. `every_pair` of equal hosts may be probed, too.
    """
    names = [host.name for host in cluster.hosts]
    if len(names) < 2:
        raise ValueError(f"the cluster {cluster.name} has one host, and so no links between hosts; connect to more")
    before_links = cluster if before is None else dataclasses.replace(before, host_links=None).applied_to(cluster)
    started = clock()
    try:
        with bench.open(PLACE) as run:
            prober = Prober(run, measurements, names, progress)
            # Nothing but the links may tell hosts apart.
            equal = len({dataclasses.replace(host, name="") for host in cluster.hosts}) == 1
            probed = probe_all(prober, equal and not every_pair)
            alone = probe_alone(prober, probed)
            nets = settled(alone.nets, len(names))
            media = switches(alone.contended, probed, nets)
            media += probe_cards(prober, nets, media)
    except MeasurementError as error:
        raise RuntimeError(
            f"the links aren't calibrated, and no file is written: {error}; see that all hosts are up and reach each "
            "other, and go on with --resume"
        ) from error
    host_links = _links(before_links, before, nets, media)
    host_links.applied_to(cluster, name)
    today = datetime.date.today().isoformat()
    kept = before or Calibration(name, f"alpa-dejavu calibrate --links on {cluster.name}", today)
    figures = {"seconds": clock() - started, "rounds": float(len(probed)), "pairs": float(len(alone.nets))}
    fit = Fit(_PART, "alpa-dejavu calibrate --links: TCP between Ray's addresses", len(measurements), figures=figures)
    equal_ones = (
        f"{_PART}: {len(alone.nets)} of {len(nets)} were probed and agree, so the others are taken to be as these are; "
        "--every-pair probes them all"
    )
    return _with(kept, host_links, [fit], [] if len(alone.nets) == len(nets) else [equal_ones])


def with_host_links(calibration: Calibration, before: Calibration, cluster: Cluster) -> Calibration:
    """Returns a calibration with an earlier one's links from host to host, if those are of the cluster's hosts."""
    links = before.host_links
    if links is None:
        return calibration
    unknown = [host.name for host in cluster.hosts if host.name not in links.hosts]
    if unknown:
        gone = f"{_PART}: those measured before are not of {unknown[0]!r} and are left out; measure them with --links"
        return dataclasses.replace(calibration, missing=(*calibration.missing, gone))
    fits = [fit for fit in before.fits if fit.part == _PART]
    return _with(calibration, links, fits, [sentence for sentence in before.missing if sentence.startswith(_PART)])


def _with(kept: Calibration, links: HostLinks, fits: Sequence[Fit], missing: Sequence[str]) -> Calibration:
    """The calibration with links from host to host, and what is said of them, in place of those that it has."""
    return dataclasses.replace(
        kept,
        host_links=links,
        fits=(*(fit for fit in kept.fits if fit.part != _PART), *fits),
        missing=(*(sentence for sentence in kept.missing if not sentence.startswith(_PART)), *missing),
    )


def _links(
    cluster: Cluster, before: Calibration | None, nets: Mapping[Pair, Link], media: Sequence[Shared]
) -> HostLinks:
    count = len(cluster.hosts)
    measured = before is not None and any(not link.within for link in before.links)

    def link(a: int, b: int) -> Link:
        copied = _CPU in (cluster.hosts[a].device.name, cluster.hosts[b].device.name)
        return carried(cluster.links[a][b], nets[a, b], nets[0, 1] if measured else None, copied)

    links_by_pair = _evened({pair: link(*pair) for pair in nets})
    # What has room for all its links at a time slows none down.
    narrow = [
        medium for medium in media if medium.bytes_per_s < sum(links_by_pair[pair].bytes_per_s for pair in medium.pairs)
    ]
    links_by_pair = {
        pair: dataclasses.replace(link_of_pair, shares=tuple(medium.name for medium in narrow if pair in medium.pairs))
        for pair, link_of_pair in links_by_pair.items()
    }
    links = tuple(tuple(links_by_pair.get((a, b)) for b in range(count)) for a in range(count))
    names = tuple(host.name for host in cluster.hosts)
    return HostLinks(names, links, {medium.name: medium.bytes_per_s for medium in narrow})


def carried(before: Link, net: Link, reference: Link | None, copied: bool) -> Link:
    """Returns the link that follows from a known one, measured over `reference` (None: it is an estimate), and a
    network.

    Bytes of CPUs (`copied`), and of sends by the runtime, are copied before and after the network carries them, so the
    seconds of both add up. Others go over the network alone.
    """
    send: tuple[float | None, float | None] = (None, None)
    if before.send_latency_s is not None or before.send_bytes_per_s is not None or copied:
        send = _added(before.sending, net, reference)
    if copied:
        latency_s, rate = _added((before.latency_s, before.bytes_per_s), net, reference)
    elif reference is None:
        latency_s, rate = net.latency_s, net.bytes_per_s
    else:
        latency_s = max(before.latency_s + net.latency_s - reference.latency_s, _LEAST_S)
        rate = before.bytes_per_s * net.bytes_per_s / reference.bytes_per_s
    return Link(latency_s, rate, *send)


def _added(before: tuple[float, float], net: Link, reference: Link | None) -> tuple[float, float]:
    """Returns the latency and rate of copies, without the network they were measured over, and the new network."""
    latency_s, per_byte = before[0], 1 / before[1]
    if reference is not None:
        latency_s = max(latency_s - reference.latency_s, 0.0)
        per_byte = max(per_byte - 1 / reference.bytes_per_s, 0.0)
    return latency_s + net.latency_s, 1 / (per_byte + 1 / net.bytes_per_s)


def _evened(links: Mapping[Pair, Link]) -> dict[Pair, Link]:
    """Returns the links, with figures made equal that differ by noise alone: copies may hide how networks differ."""
    evened = dict(links)
    for name, even in _EVEN.items():
        figures = {pair: getattr(link, name) for pair, link in links.items() if getattr(link, name) is not None}
        for pair, value in zip(figures, even(list(figures.values())), strict=True):
            changed: dict[str, Any] = {name: value}
            evened[pair] = dataclasses.replace(evened[pair], **changed)
    return evened
