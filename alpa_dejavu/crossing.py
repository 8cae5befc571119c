"""What crosses from stage to stage where hosts are unlike: what it takes depends on both stages' hosts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._kinds import kinds_of, members_of_kinds
from alpa_dejavu._ranges import FloatArray
from alpa_dejavu._ties import rounded
from alpa_dejavu.communication import Group
from alpa_dejavu.placement import kinds_of_sites
from alpa_dejavu.problem import Cluster, Model, SearchSpace, Submesh

if TYPE_CHECKING:
    from alpa_dejavu.pricing import Pricing

__all__ = ["Crossing", "Crossings", "crossings"]

_Ends = tuple[int, int]
"""A host that sends forward and one that receives; the same one: they are in one host."""
_COUNTS = ("num_hosts", "num_devices")
"""What takes shares of a tensor: hosts, or, in one host, devices. The stage that has fewer sets the number."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Crossing:
    """Bytes and number of tensors that one micro-batch sends across the cut before each layer, each of shape (L,).

    That is all that was made before the cut and is used behind it, forward and backward; nothing before layer 0.
    """

    forward_bytes: FloatArray
    forward_tensors: FloatArray
    backward_bytes: FloatArray
    backward_tensors: FloatArray

    @classmethod
    def of(cls, model: Model) -> Crossing:
        """By the tensors of a model."""
        num_layers = model.num_layers
        steps = np.zeros((4, num_layers + 1))
        for tensor in model.tensors:
            if tensor.role != "activation" or not tensor.users:
                continue
            made = model.layer_of(tensor.producer)
            users = [model.layer_of(position) for position in tensor.users]
            back = tensor.producer >= num_layers
            start, end = (min(users) + 1, made + 1) if back else (made + 1, max(users) + 1)
            if start < end:
                row = 2 * back
                steps[row : row + 2, start] += tensor.num_bytes, 1.0
                steps[row : row + 2, end] -= tensor.num_bytes, 1.0
        found = np.cumsum(steps, axis=1)[:, :num_layers]
        found[::2][found[1::2] < 0.5] = 0.0  # roundoff may leave a byte where no tensor is
        return cls(*found)

    def seconds(self, pricing: Pricing, ends: _Ends, lanes: int) -> tuple[FloatArray, FloatArray]:
        """Forward and backward, each of shape (L,), where so many pairs of devices or hosts take shares at a time."""

        def sent(num_bytes: FloatArray, tensors: FloatArray, group: Group) -> FloatArray:
            each = num_bytes / np.maximum(tensors, 1) / lanes
            return rounded(tensors * pricing.communication.seconds("send", each, group))

        return (
            sent(self.forward_bytes, self.forward_tensors, Group(pricing.cluster, ends)),
            sent(self.backward_bytes, self.backward_tensors, Group(pricing.cluster, ends[::-1])),
        )


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Crossings:
    """Seconds of one micro-batch from each of S submeshes to each other, over one of D kinds of links.

    Attributes:
        sent: what crosses.
        links: shape (S, S), the kind of link from a stage on one submesh to the next stage on another.
        forward_s, backward_s: shape (L, D), across the cut before each layer.
        between: shape (D,), whether the link joins hosts.
    """

    sent: Crossing
    links: NDArray[np.int64]
    forward_s: FloatArray
    backward_s: FloatArray
    between: NDArray[np.bool_]

    def expected_s(self, layer: int, before: int, after: int) -> tuple[float, float]:
        """Forward and backward across the cut before a layer, between stages on two submeshes."""
        link = self.links[before, after]
        return float(self.forward_s[layer, link]), float(self.backward_s[layer, link])

    def placed_s(
        self, pricing: Pricing, layer: int, before: tuple[Submesh, Sequence[int]], after: tuple[Submesh, Sequence[int]]
    ) -> tuple[float, float]:
        """Forward and backward across the cut before a layer, between stages whose submeshes and hosts are known.

        All pairs of hosts take part; the slowest of them is waited for.
        """
        (one, sending), (other, receiving) = before, after
        lanes = min(getattr(submesh, _COUNTS[len({*sending, *receiving}) == 1]) for submesh in (one, other))
        pairs = _unlike(pricing.cluster, itertools.product(sending, receiving))
        found = [self.sent.seconds(pricing, ends, lanes) for ends in pairs]
        forward, backward = max(found, key=lambda each: float(each[0][layer] + each[1][layer]))
        return float(forward[layer]), float(backward[layer])


def crossings(pricing: Pricing, space: SearchSpace) -> Crossings:
    """Of the submeshes of a search space, whose hosts are known by their kinds.

    Stages on the same kind of host are in different hosts of it, where it has several.
    """
    assert space.hosts is not None, "asked where hosts are unlike"
    members, sent = members_of_kinds(pricing.cluster), Crossing.of(pricing.model)
    uses = kinds_of_sites(space, pricing.cluster) > 0
    ends: list[_Ends] = []
    choices = [(a, b) for a in range(len(members)) for b in range(len(members))]
    for a, b in choices:
        ends.append((members[a][0], members[b][min(a == b, len(members[b]) - 1)]))
    alone = [sum(float(part.sum()) for part in sent.seconds(pricing, pair, 1)) for pair in ends]
    slowest = np.zeros((len(uses),) * 2, dtype=np.int64)
    for n in np.argsort(alone, kind="stable").tolist():
        a, b = choices[n]
        slowest[np.ix_(uses[:, a], uses[:, b])] = n
    inside = np.array([a == b for a, b in ends])[slowest]
    hosts, devices = (np.array([getattr(submesh, name) for submesh in space.submeshes]) for name in _COUNTS)
    lanes = np.where(inside, np.minimum.outer(devices, devices), np.minimum.outer(hosts, hosts))
    found, links = np.unique(np.stack([slowest, lanes], axis=-1).reshape(-1, 2), axis=0, return_inverse=True)
    seconds = [sent.seconds(pricing, ends[n], lane) for n, lane in found.tolist()]
    forward, backward = (np.array([each[way] for each in seconds]).T for way in (0, 1))
    between = np.array([ends[n][0] != ends[n][1] for n in found[:, 0].tolist()])
    return Crossings(sent, np.reshape(links, slowest.shape).astype(np.int64), forward, backward, between)


def _unlike(cluster: Cluster, pairs: Iterable[_Ends]) -> list[_Ends]:
    """One pair of hosts for each pair of kinds, and one host with itself."""
    kinds = kinds_of(cluster)
    return list({(kinds[a], kinds[b], a == b): (a, b) for a, b in pairs}.values())
