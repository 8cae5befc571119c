"""NCCL's collectives on clusters of GPUs, by a few figures of each generation of GPUs and of the network."""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu._util.json_text import strict_json
from alpa_dejavu.clusters.gpus import gpu_of
from alpa_dejavu.costs.communication._alpha_beta import COLLECTIVES, RING_PASSES, AlphaBeta, CommunicationModel, Group
from alpa_dejavu.problem import Link

Array = NDArray[np.float64]
FILE = Path(__file__).with_name("nccl.json")
"""The fitted figures, with their origin and their errors on what was left out of the fit."""
LONG_BYTES = 2.0**20
"""From so many bytes on a tensor is long: its seconds are mostly those of its bytes."""
_PCIE_BYTES_PER_S = 64e9
_NIC_BYTES_PER_S = 12.5e9
_EAGER_BYTES = 32 * 1024
_JOINED = 7
_SHARPNESS = 8
_GENERATIONS = ("volta", "ampere", "hopper", "blackwell")
_SWITCHED = ("hopper", "blackwell")
_MEASURED = ("V100-SXM2", "A100-SXM", "H100-SXM", "B200-SXM", "L40S")


@final
@dataclasses.dataclass(frozen=True)
class NcclFigures:
    """The figures of NCCL's collectives among GPUs of one generation inside a host."""

    start_s: float  # the seconds in which a collective starts
    # hop_s, quick: the seconds of a round of a ring in the quick protocol (LL), and its part of the full rate
    hop_s: float
    quick: float
    # step_s, share: those of a round in the full protocol (Simple), and the part of the link's rate that it reaches
    step_s: float
    share: float
    own: float  # the seconds of a byte that a device keeps, which is copied too, relative to a byte that it sends
    switch: float  # the seconds of an all-reduce's bytes that the NVLink switch adds up, relative to those of a ring
    peer_s: float  # the seconds for each other device of an all-to-all
    exchange_s: float  # the further seconds of an all-to-all whose messages are long
    exchange_share: float  # the part of a ring's rate that an all-to-all reaches
    crowd: float  # the power of the number of devices with which they slow each other down where they share PCIe

    def per_byte_s(self, collective: str, size: int, link: Link, kind: str) -> float:
        """Returns the seconds per byte of a tensor among `size` devices of a host, at the full protocol's rate."""
        sent = RING_PASSES.get(collective, 1) * (size - 1) / size
        seconds = (sent / link.group_bytes_per_s(size) + self.own / size / link.bytes_per_s) / self.share
        if kind == "pcie":
            return seconds * (size / 2) ** self.crowd
        if collective == "all_to_all":
            # Where NVLinks join devices in pairs, they don't join all of more than four, unless each has seven of them.
            pair = link.pair_bytes_per_s
            joined = pair is None or link.bytes_per_s >= _JOINED * pair
            apart = 1.0 if joined else max(size / 4, 1.0) ** self.crowd
            return seconds / self.exchange_share * apart
        return seconds * self.switch if collective == "all_reduce" and size > 4 and kind in _SWITCHED else seconds

    def inside_s(self, collective: str, sizes: Array, size: int, link: Link, kind: str) -> Array:
        """Returns the seconds of a collective among `size` devices of a host for each size in bytes."""
        bytes_s = sizes * self.per_byte_s(collective, size, link, kind)
        if collective == "all_to_all":
            return self.start_s + self.peer_s * (size - 1) + self.exchange_s * _long(sizes / size) + bytes_s
        rounds = RING_PASSES[collective] * (size - 1)
        quick_s = self.start_s + self.hop_s * rounds + bytes_s / self.quick
        full_s = self.start_s + self.step_s * rounds + bytes_s
        less_s, more_s = np.minimum(quick_s, full_s), np.maximum(quick_s, full_s)
        return np.asarray(less_s * (1 + (less_s / more_s) ** _SHARPNESS) ** (-1 / _SHARPNESS))


@final
@dataclasses.dataclass(frozen=True)
class NetworkFigures:
    """The figures of NCCL's collectives between hosts."""

    hop: float  # the seconds of a message from host to host, relative to the link's latency
    peer: float  # those for each device of other hosts in an all-to-all, likewise
    share: float  # the part of the network's rate that rings and all-to-alls reach
    tree: float  # the part of that rate that all-reduces by trees reach

    def across_s(self, collective: str, sizes: Array, group: Group, inside: NcclFigures, kind: str) -> Array:
        """Returns the seconds of a collective of a group that spans hosts for each size in bytes."""
        cluster, members, size = group.cluster, group.members, group.size
        link, hosts, most = group.slowest_link, len(members), max(members.values())
        part = min(count / cluster.hosts[host].num_devices for host, count in members.items())
        cards = max(link.bytes_per_s * part, min(link.bytes_per_s, _NIC_BYTES_PER_S))
        if link.device_bytes_per_s is not None:
            cards = link.devices_bytes_per_s(min(members.values()))
        byte_s = 1 / (min(cards, link.bytes_per_s / group.concurrent) * self.share)
        if collective == "all_to_all":
            leaving = max(count * (size - count) for count in members.values()) / size
            ways = [(self.peer * link.latency_s * (size - most), leaving * byte_s)]
        else:
            passes = RING_PASSES[collective]
            around_s = (hosts - 1) * self.hop * link.latency_s + (size - hosts) * inside.hop_s
            ways = [(passes * around_s, passes * (size - 1) / size * byte_s)]
        if collective == "all_reduce":
            deep_s = math.ceil(math.log2(hosts)) * self.hop * link.latency_s + (most - 1) * inside.hop_s
            ways.append((2 * deep_s, 2 * (hosts - 1) / hosts * byte_s / self.tree))
        least_s = 0.0
        if most > 1:
            # A ring goes through all devices; in an all-to-all the devices of a host have a part for each other.
            passing = most / size if collective == "all_to_all" else (1 - 1 / size) / (1 - 1 / most)
            host = _narrowest(group)
            least_s = inside.per_byte_s(collective, most, cluster.links[host][host], kind) * passing
        return inside.start_s + np.min([wait_s + sizes * max(sent_s, least_s) for wait_s, sent_s in ways], axis=0)


@final
@dataclasses.dataclass(frozen=True)
class Nccl(CommunicationModel):
    """A model of NCCL's collectives on GPUs: what starts and goes around a ring takes the seconds of the GPU's
    generation, and bytes a share of the rates of the cluster's own links.

    Inside a host NCCL takes the faster of two protocols: one with short rounds and little of the rate, one with long
    rounds and most of it. Across hosts all of a host's devices send at once: a ring leaves each host once, through as
    many network cards as the group has devices there; an all-reduce may go through trees of hosts instead. It takes at
    least as long as its bytes take inside a host. Groups that communicate at the same time share the hosts' links. A
    send goes by the alpha-beta model.

    Attributes:
        launch_s: the seconds for each device of a group that start a collective where one process has all devices of a
            host; 0: each has a process of its own.
        figures: the figures inside a host; None: those of the GPUs' generation.
        network: the figures between hosts; None: those of sockets below 100 Gbit/s, and of RDMA from there on.
        spread_from: where the intervals come from, in a few words.

    References:
        NVIDIA, NCCL, src/graph/tuning.cc (protocols, each with a latency of a hop and a rate).
        Jeaugey, Massively Scale Your Deep Learning Training with NCCL 2.4, NVIDIA, 2019 (trees).
    """

    spread_from: ClassVar[str] = "NCCL's collectives"
    launch_s: float = 0.0
    figures: NcclFigures | None = None
    network: NetworkFigures | None = None

    def seconds(self, collective: str, num_bytes: ArrayLike, group: Group) -> Array:
        """Returns the seconds of one collective of a group for each size in bytes, in the shape of `num_bytes`."""
        if collective not in COLLECTIVES:
            raise ValueError(f"collective is {collective!r}, but must be one of {', '.join(COLLECTIVES)}; choose one")
        sizes = np.asarray(num_bytes, dtype=np.float64)
        if collective == "send" or group.size == 1:
            return AlphaBeta().seconds(collective, sizes, group)
        kind, host = kind_of(group), _narrowest(group)
        inside = self.figures or _figures(kind)
        if len(group.members) == 1:
            seconds = inside.inside_s(collective, sizes, group.size, group.cluster.links[host][host], kind)
        else:
            network = self.network or _network("sockets" if _has_sockets(group) else "rdma")
            seconds = network.across_s(collective, sizes, group, inside, kind)
        return np.where(sizes > 0, self.launch_s * group.size + seconds, 0.0)

    def interval(self, collective: str, num_bytes: ArrayLike, group: Group) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Returns the lower and the upper ends of 90 % intervals of a collective's seconds, and whether such GPUs, or
        for groups across hosts such networks, were measured; all in the shape of `num_bytes`.

        Measured GPUs have the errors on shapes that were left out, others those on a GPU that was left out, groups
        across hosts those on groups over sockets; what nobody measured is within a factor of two.
        """
        seconds = self.seconds(collective, num_bytes, group)
        rests_on, is_measured = _rests_on(collective, group)
        short, long = np.array(_fitted()["ends"][rests_on])
        ends = np.where(np.asarray(num_bytes)[..., None] < LONG_BYTES, short, long)
        measured = np.full(seconds.shape, is_measured)
        return seconds * np.exp(ends[..., 0]), seconds * np.exp(ends[..., 1]), measured


def _long(num_bytes: Array) -> Array:
    """Returns how far the messages of an all-to-all are in the protocol of long ones, from 0 to 1."""
    return np.asarray(num_bytes**2 / (num_bytes**2 + _EAGER_BYTES**2))


def _narrowest(group: Group) -> int:
    """Returns the index of the host of a group whose devices have the slowest links to each other."""
    links = group.cluster.links
    return min(sorted(group.members), key=lambda host: links[host][host].bytes_per_s)


def kind_of(group: Group) -> str:
    """Returns whose figures a group has inside a host: "pcie", a generation, or "common" for any other GPU."""
    host = _narrowest(group)
    gpu = gpu_of(group.cluster.hosts[host].device.name)
    rate = group.cluster.links[host][host].bytes_per_s if gpu is None else gpu.link_bytes_per_s
    if rate <= _PCIE_BYTES_PER_S:
        return "pcie"
    return gpu.generation if gpu is not None and gpu.generation in _GENERATIONS else "common"


def _has_sockets(group: Group) -> bool:
    return group.slowest_link.bytes_per_s < _NIC_BYTES_PER_S


def _rests_on(collective: str, group: Group) -> tuple[str, bool]:
    """Returns which errors a prediction's interval is from, and whether they are of such GPUs or such a network."""
    kind, device = kind_of(group), group.cluster.hosts[_narrowest(group)].device
    if collective == "send":
        return "nothing", False
    if len(group.members) > 1:
        return "across", _has_sockets(group)
    if device.name.startswith(_MEASURED):
        return kind, True
    return "nothing" if kind == "pcie" else "common", False


@functools.cache
def _figures(kind: str) -> NcclFigures:
    return NcclFigures(**_fitted()["figures"][kind])


@functools.cache
def _network(name: str) -> NetworkFigures:
    return NetworkFigures(**_fitted()["network"][name])


@functools.cache
def _fitted() -> dict[str, Any]:
    fitted: dict[str, Any] = strict_json(FILE.read_text(encoding="utf-8"))
    return fitted
