"""Interstage transfer: what crosses the cuts between stages, and what that takes.

Of two stages the one that has fewer hosts (in one host: devices) says how many shares of a tensor go at a time.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import types
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu._util.ties import rounded
from alpa_dejavu.clusters.host_classes import kinds_of, members_of_kinds
from alpa_dejavu.clusters.placement import capacities, kinds_of_sites
from alpa_dejavu.costs.communication import CommunicationModel, Group
from alpa_dejavu.costs.runtime import ALPA, RuntimeProfile
from alpa_dejavu.problem import Cluster, Model, SearchSpace, Sites

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_Ends = tuple[int, int]
"""A host that sends forward and one that receives; the same one: they are in one host."""
_ALONE: Mapping[_Ends, int] = types.MappingProxyType({})


@final
@dataclasses.dataclass(frozen=True, eq=False)
class CutBytes:
    """The bytes and the number of tensors that one micro-batch sends from stage to stage if a model of L layers is cut
    before a layer: those made on one side of the cut and used on the other; none for layer 0.
    """

    forward_bytes: Float[FloatArray, " L"]
    forward_tensors: Float[FloatArray, " L"]
    backward_bytes: Float[FloatArray, " L"]
    backward_tensors: Float[FloatArray, " L"]

    @classmethod
    def of(cls, model: Model) -> CutBytes:
        """Returns what one micro-batch of a model sends across a cut before each layer."""
        num_layers = model.num_layers
        steps = np.zeros((4, num_layers + 1))
        for tensor in model.tensors:
            if tensor.role != "activation" or not tensor.users:
                continue
            producer = model.layer_of(tensor.producer)
            users = [model.layer_of(position) for position in tensor.users]
            back = tensor.producer >= num_layers
            start, end = (min(users) + 1, producer + 1) if back else (producer + 1, max(users) + 1)
            if start < end:
                row = 2 * back
                steps[row : row + 2, start] += tensor.num_bytes, 1.0
                steps[row : row + 2, end] -= tensor.num_bytes, 1.0
        cuts = np.cumsum(steps, axis=1)[:, :num_layers]
        cuts[::2][cuts[1::2] < 0.5] = 0.0  # roundoff may leave a byte where no tensor is
        return cls(*cuts)

    @property
    def largest(self) -> float:
        """Returns the bytes of the largest tensor that crosses any cut; those that cross the same cut count with their
        mean.
        """
        ways = (self.forward_bytes, self.forward_tensors), (self.backward_bytes, self.backward_tensors)
        return max(float(np.max(num_bytes / np.maximum(tensors, 1))) for num_bytes, tensors in ways)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class InterstageTable:
    """A table of the seconds of one micro-batch's transfer between stages on any two of S submeshes, by D kinds of
    links.
    """

    links: Int[NDArray[np.int64], "S S"]  # the kind of link from a stage on one submesh to the next stage on another
    # forward_s, backward_s: seconds over each kind of link where the next stage begins with each of L layers
    forward_s: Float[FloatArray, "L D"]
    backward_s: Float[FloatArray, "L D"]
    ends: tuple[_Ends, ...]  # for each kind of link, the index of a host that sends forward and of one that receives
    # Into how many shares, sent at the same time, a tensor is cut on each kind of link
    shares: Int[NDArray[np.int64], " D"]

    def seconds(self, layer: int, before: int, after: int) -> tuple[float, float]:
        """Returns the forward and backward seconds of a micro-batch's transfer between a stage on the submesh `before`
        and the next stage, which begins with `layer`, on the submesh `after`.
        """
        link = self.links[before, after]
        return float(self.forward_s[layer, link]), float(self.backward_s[layer, link])

    def of(self, submeshes: Sequence[int]) -> InterstageTable:
        """Returns the table of interstage transfers with only some of its submeshes, given by their indices."""
        return dataclasses.replace(self, links=self.links[np.ix_(submeshes, submeshes)])

    def sites(
        self, cluster: Cluster, space: SearchSpace, num_micro_batches: int, available: Int[NDArray[np.int64], " K"]
    ) -> Sites:
        """Returns the seconds of transfers between stages, and the devices that each submesh takes, as slicers take
        them; `available` has how many devices there are of each of K kinds of hosts.

        Where all devices share a CPU of C cores, a transfer is the work of one of them. It counts 1 / C times, and once
        a step in full: the rest is hidden by the work on other micro-batches.
        """
        links, seconds = self.links, self.forward_s + self.backward_s
        sizes = np.array([submesh.num_devices for submesh in space.submeshes])
        if cluster.cores is not None:
            seconds = seconds * (1 / cluster.cores + (1 - 1 / cluster.cores) / num_micro_batches)
        uses = sizes[:, None] if space.hosts is None else kinds_of_sites(space, cluster)
        return Sites(uses, available, links, seconds).with_capacity(*capacities(space, cluster, available))


@final
class InterstageTransfer:
    """A model of the seconds that activations and gradients take between the pipeline stages of a model on a cluster.

    Args:
        model: the model whose tensors are sent from stage to stage.
        cluster: the cluster with the hosts of the stages and their links.
        communication: the model that predicts the seconds of each send.
        runtime: what the training framework adds to each send.
        factors: the factors on the predicted seconds of sends within a host, and of sends between hosts.
    """

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        communication: CommunicationModel,
        runtime: RuntimeProfile = ALPA,
        factors: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        self.model, self.bytes = model, CutBytes.of(model)
        self._cluster, self._communication, self._runtime, self._factors = cluster, communication, runtime, factors
        self._known: dict[tuple[_Ends, int, int, int], FloatArray] = {}

    def scaled(self, within: float, between: float) -> InterstageTransfer:
        """Returns the model in which sends within a host, and sends between hosts, take so many times the predicted
        seconds.
        """
        return InterstageTransfer(self.model, self._cluster, self._communication, self._runtime, (within, between))

    def seconds(self, ends: _Ends, shares: int, at_a_time: int = 1, devices: int = 1) -> Float[FloatArray, "2 L"]:
        """Returns the seconds of one micro-batch's transfer across the cut before each layer, forward and backward:
        forward over the link from the first host of `ends` to the second, each tensor cut into `shares` that are sent
        at the same time, `at_a_time` pipelines over the same link, by so many devices of each host.
        """
        key = ends, shares, at_a_time, devices if self._has_cards(ends) else 1
        if key not in self._known:
            sent = self.bytes
            ahead = self._sent(sent.forward_bytes, sent.forward_tensors, *key)
            back = self._sent(sent.backward_bytes, sent.backward_tensors, ends[::-1], *key[1:])
            self._known[key] = rounded(np.stack([ahead, back]) * self._factors[ends[0] != ends[1]])
        return self._known[key]

    def _has_cards(self, ends: _Ends) -> bool:
        """Whether devices have network cards of their own, so that it matters how many of a host send."""
        return self._cluster.links[ends[0]][ends[1]].device_bytes_per_s is not None

    def _sent(
        self, num_bytes: FloatArray, tensors: FloatArray, ends: _Ends, shares: int, at_a_time: int, devices: int
    ) -> FloatArray:
        message_bytes = num_bytes / np.maximum(tensors, 1) / shares
        hosts = (ends[0],) * devices + (ends[1],) * devices
        alone = self._communication.seconds("send", message_bytes, Group(self._cluster, hosts, at_a_time))
        return np.asarray(tensors * self._runtime.sends * alone)

    def between(
        self, layer: int, before: Sequence[int], after: Sequence[int], at_a_time: Mapping[_Ends, int] = _ALONE
    ) -> tuple[float, float]:
        """Returns the forward and backward seconds of a micro-batch's transfer between two successive stages, of which
        the second begins with `layer`, on the given hosts of each of their devices.

        All pairs of a host of one stage and a host of the other send; each direction takes as long as its slowest pair.
        `at_a_time` says how many pipelines send from one host to another at the same time, 1 for a pair that isn't in
        it.
        """
        kinds, sending, receiving = kinds_of(self._cluster), set(before), set(after)
        inside = len(sending | receiving) == 1
        shares = min(len(before), len(after)) if inside else min(len(sending), len(receiving))
        unlike: dict[tuple[int, int, bool, int], _Ends] = {}
        ends = sorted(sending), sorted(receiving)
        for a, b in itertools.product(*(on if at_a_time else self._examples(on, sending & receiving) for on in ends)):
            many = at_a_time.get((a, b), 1)
            unlike.setdefault((kinds[a], kinds[b], a == b, many), (a, b))
        devices = min(min(collections.Counter(on).values()) for on in (before, after))
        seconds = [self.seconds(ends, shares, many, devices)[:, layer] for (*_, many), ends in unlike.items()]
        forward, backward = np.max(seconds, axis=0).tolist()
        return forward, backward

    def _examples(self, hosts: Sequence[int], both: Collection[int]) -> list[int]:
        """Two hosts of each kind, and one that both stages are on: what takes the same time is between these, too."""
        kinds, wanted = kinds_of(self._cluster), collections.Counter[tuple[int, bool]]()
        chosen = []
        for host in hosts:
            kind = kinds[host], host in both
            wanted[kind] += 1
            if wanted[kind] <= 2:
                chosen.append(host)
        return chosen

    def table(self, space: SearchSpace) -> InterstageTable:
        """Returns the seconds of transfers between stages on any two submeshes of a search space, across a cut before
        any layer.

        Two stages are taken to be on different hosts; if the cluster has too few for that, the slower link counts, of
        those within and between hosts. Unlike hosts are of the kinds that the search space names: the slowest link
        between these kinds counts.
        """
        ends, slowest = self._links(space)
        inside = np.array([a == b for a, b in ends])[slowest]
        hosts, devices, per_host = (
            np.array([getattr(submesh, name) for submesh in space.submeshes])
            for name in ("num_hosts", "num_devices", "devices_per_host")
        )
        inside &= np.maximum.outer(hosts, hosts) == 1
        shares = np.where(inside, np.minimum.outer(devices, devices), np.minimum.outer(hosts, hosts))
        cards = np.where(np.array([*map(self._has_cards, ends)])[slowest], np.minimum.outer(per_host, per_host), 1)
        sent = np.stack([slowest, shares, cards], axis=-1).reshape(-1, 3)
        kinds, links = np.unique(sent, axis=0, return_inverse=True)
        seconds = np.array([self.seconds(ends[n], share, 1, card) for n, share, card in kinds.tolist()])
        return InterstageTable(
            links=np.reshape(links, slowest.shape).astype(np.int64),
            forward_s=np.ascontiguousarray(seconds[:, 0].T),
            backward_s=np.ascontiguousarray(seconds[:, 1].T),
            ends=tuple(ends[n] for n in kinds[:, 0].tolist()),
            shares=kinds[:, 1],
        )

    def _links(self, space: SearchSpace) -> tuple[list[_Ends], Int[NDArray[np.int64], "S S"]]:
        """Returns pairs of hosts, and which of them is the slowest between any two submeshes."""
        slowest = np.zeros((len(space.submeshes),) * 2, dtype=np.int64)
        if space.hosts is None:
            hosts, num_hosts = np.array([submesh.num_hosts for submesh in space.submeshes]), len(self._cluster.hosts)
            within, between = (0, 0), (0, min(1, num_hosts - 1))
            crowded = np.add.outer(hosts, hosts) > num_hosts
            slower = self.seconds(within, 1).sum() > self.seconds(between, 1).sum()
            return [between, within], np.where(crowded & slower, 1, 0)
        members, uses = members_of_kinds(self._cluster), kinds_of_sites(space, self._cluster) > 0
        choices = list(itertools.product(range(len(members)), repeat=2))
        ends = [(members[a][0], members[b][min(a == b, len(members[b]) - 1)]) for a, b in choices]
        alone = [float(self.seconds(pair, 1).sum()) for pair in ends]
        for n in np.argsort(alone, kind="stable").tolist():
            a, b = choices[n]
            slowest[np.ix_(uses[:, a], uses[:, b])] = n
        return ends, slowest
