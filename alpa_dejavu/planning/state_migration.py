"""Finds what moves when one plan follows another: parameters and optimizer's state of layers that change hosts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import Cluster, Link, Model, Moves, StagePlan
from alpa_dejavu.problem.run import ScheduleForm

__all__ = ["Settler", "devices_of", "layer_state", "moves"]

FloatArray = NDArray[np.float64]
_ONE_EACH = ScheduleForm()
_ASKED = 8
"""Among so many hosts that have what another lacks, the one with the fastest link is looked for."""


def layer_state(model: Model) -> FloatArray:
    """Returns for each layer the bytes of its parameters, and of the optimizer's state for them, shape (L, 2).

    Parameters that several layers use are counted with the first of them.
    """
    found = np.zeros((model.num_layers, 2))
    for tensor in model.tensors:
        if tensor.role in ("parameter", "optimizer") and tensor.users:
            layer = min(model.layer_of(position) for position in tensor.users)
            found[layer, int(tensor.role == "optimizer")] += tensor.num_bytes
    return found


def devices_of(
    stages: Sequence[StagePlan], form: ScheduleForm = _ONE_EACH
) -> list[dict[str, tuple[int, int]]]:
    """Returns for each stage, by host name, the index of the first device that it takes on the host, and how many it
    takes; stages that share a submesh in schedules of a form have the same ones.

    Stages with more devices on each host take theirs first; among equal ones the last stage does.

    References:
        Alpa's `get_sliced_virtual_submeshes`.
    """
    taken: dict[str, int] = {}
    count = len(stages) // form.chunks
    found: list[dict[str, tuple[int, int]]] = [{} for _ in range(count)]
    for n in sorted(range(count), key=lambda n: (stages[n].submesh.devices_per_host, n), reverse=True):
        each = stages[n].submesh.devices_per_host
        for host in stages[n].hosts:
            found[n][host] = taken.get(host, 0), each
            taken[host] = taken.get(host, 0) + each
    return [found[submesh] for submesh in form.submesh_of(len(stages))]


@final
class Settler:
    """A placer of a new plan's stages on those of several alike hosts that already hold most of the training state they
    need.

    All of a host's stages go to the same other host, so that nothing of the plan's seconds changes.

    Args:
        stages: the stages of the new plan.
        before: the stages of the plan that it follows.
        hosts: the number of devices of each host by its name, lost ones too.
        state: for each of L layers the bytes of its parameters and of its optimizer's state, shape (L, 2).
    """

    def __init__(
        self, stages: Sequence[StagePlan], before: Sequence[StagePlan], hosts: Mapping[str, int], state: FloatArray
    ) -> None:
        self._names = list(hosts)
        ends = np.concatenate([[0.0], np.cumsum(state.sum(axis=1))])
        common = np.array([[_common(new, old, ends) for old in before] for new in stages])
        there = np.array([[name in held for name in self._names] for held in (set(old.hosts) for old in before)])
        self._has = common @ there

    def settled(self, stages: Sequence[StagePlan], lost: Collection[str]) -> tuple[StagePlan, ...]:
        """Returns the stages on the hosts that hold most of their state; unchanged if there are too few hosts.

        Args:
            stages: the stages of the new plan, or the same on other hosts.
            lost: the names of hosts that are lost, which no stage may be on.
        """
        asked = list(dict.fromkeys(name for stage in stages for name in stage.hosts))
        free = [n for n, name in enumerate(self._names) if name not in lost]
        if len(asked) > len(free):
            return tuple(stages)
        needs = np.array([[name in stage.hosts for stage in stages] for name in asked], dtype=np.float64)
        places = self._assigned(needs @ self._has[:, free])
        taken = {name: self._names[free[place]] for name, place in zip(asked, places, strict=True)}
        return tuple(dataclasses.replace(stage, hosts=tuple(taken[name] for name in stage.hosts)) for stage in stages)

    @staticmethod
    def _assigned(has: FloatArray) -> list[int]:
        """Returns for each row its column, each column once: those that have most in common first."""
        found = [-1] * len(has)
        free = set(range(has.shape[1]))
        for place in np.argsort(-has, axis=None, kind="stable").tolist():
            row, column = divmod(place, has.shape[1])
            if found[row] < 0 and column in free:
                found[row] = column
                free.remove(column)
        return found


def _common(one: StagePlan, other: StagePlan, ends: FloatArray) -> float:
    """Returns the bytes of the layers that both stages have."""
    first, last = max(one.layers[0], other.layers[0]), min(one.layers[1], other.layers[1])
    return float(ends[last + 1] - ends[first]) if first <= last else 0.0


def moves(
    before: Sequence[StagePlan],
    after: Sequence[StagePlan],
    cluster: Cluster,
    state: FloatArray,
    lost: Collection[str] = (),
    form: ScheduleForm = _ONE_EACH,
) -> Moves:
    """Returns the training state that hosts have to take in for a new plan: what their stages need and they lack.

    A host already has a layer if the same of its devices held it before, divided among as many of them. With ZeRO, each
    host has only a part of what is divided among data-parallel devices.

    Args:
        before: the stages of the plan that ran.
        after: the stages of the plan that follows.
        cluster: has the hosts of the new plan; hosts of the old one that it hasn't are lost.
        state: for each of L layers the bytes of its parameters and of its optimizer's state, shape (L, 2).
        lost: the names of hosts of the cluster that are lost too.
        form: the form of the schedule of both plans, which says which stages share a submesh.
    """
    links = _Links(cluster, lost)
    ends = np.concatenate([np.zeros((1, 2)), np.cumsum(state, axis=0)])
    held, needed = devices_of(before, form), devices_of(after, form)
    took: dict[str, float] = {}
    gave: dict[str, float] = {}
    moved: set[int] = set()
    total = 0.0
    for new, places in zip(after, needed, strict=True):
        for old, had in zip(before, held, strict=True):
            first, last = max(new.layers[0], old.layers[0]), min(new.layers[1], old.layers[1])
            if first > last:
                continue
            left = [host for host in had if host in links.places]
            num_bytes = float((ends[last + 1] - ends[first]) @ _shares(new))
            for n, (host, devices) in enumerate(places.items()):
                if _has(new, old, devices, had.get(host)) or not num_bytes:
                    continue
                seconds, source = links.fastest(left, host, num_bytes, turn=n)
                took[host] = took.get(host, 0.0) + seconds
                if source is not None:
                    gave[source] = gave.get(source, 0.0) + seconds
                moved.update(range(first, last + 1))
                total += num_bytes
    return Moves(tuple(sorted(moved)), total, max([*took.values(), *gave.values()], default=0.0))


def _shares(stage: StagePlan) -> FloatArray:
    """Returns the shares of parameters and of optimizer's state that each of the stage's hosts keeps as a whole."""
    among = 1.0 / len(stage.hosts)
    return np.array([among if stage.zero == 3 else 1.0, among if stage.zero else 1.0])


def _has(new: StagePlan, old: StagePlan, devices: tuple[int, int], had: tuple[int, int] | None) -> bool:
    """Returns whether a host's devices hold already what they need of the layers of both stages."""
    if had is None or (new.zero, new.logical_mesh[1:]) != (old.zero, old.logical_mesh[1:]):
        return False
    inside = had[0] <= devices[0] and devices[0] + devices[1] <= had[0] + had[1]
    return inside and (not new.zero or new.logical_mesh == old.logical_mesh)


@final
class _Links:
    """The links of a cluster, which tell the fastest way to a host."""

    def __init__(self, cluster: Cluster, lost: Collection[str]) -> None:
        self._links = cluster.links
        self.places = {host.name: n for n, host in enumerate(cluster.hosts) if host.name not in lost}
        self._slowest: dict[int, Link] = {}

    def fastest(self, sources: Sequence[str], host: str, num_bytes: float, turn: int) -> tuple[float, str | None]:
        """Returns in how many seconds some bytes can be sent to a host from the source with the fastest link, and the
        name of that source; if no host has the bytes, the seconds over the slowest link to the host, and None.

        Args:
            sources: the names of the hosts that have the bytes; of many only 8 are looked at.
            host: the name of the host that takes them in.
            num_bytes: how many they are.
            turn: the place in `sources` of the first one that is looked at.
        """
        to, links = self.places[host], self._links
        if host in sources:
            return _seconds(links[to][to], num_bytes), host
        if sources:
            asked = [sources[(turn + n) % len(sources)] for n in range(min(len(sources), _ASKED))]
            each = [_seconds(links[self.places[source]][to], num_bytes) for source in asked]
            return min(each), asked[each.index(min(each))]
        if to not in self._slowest:
            others = [links[n][to] for n in self.places.values() if n != to] or [links[to][to]]
            self._slowest[to] = max(others, key=lambda link: _seconds(link, num_bytes))
        return _seconds(self._slowest[to], num_bytes), None


def _seconds(link: Link, num_bytes: float) -> float:
    latency_s, bytes_per_s = link.sending
    return latency_s + num_bytes / bytes_per_s
