"""Finds what moves when one plan follows another: parameters and optimizer's state of layers that change hosts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.planning.changed._traffic import Traffic
from alpa_dejavu.problem import Cluster, Model, Moves, StagePlan
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

    A host already has a layer if the same of its devices held it before, divided among as many of them. What is divided
    among hosts (with ZeRO, or by tensor parallelism over several) each has one part of: the rest of what it needs comes
    from the hosts of the other parts, and what no host has that is left comes from a checkpoint.

    Args:
        before: the stages of the plan that ran.
        after: the stages of the plan that follows.
        cluster: has the hosts of the new plan; hosts of the old one that it hasn't are lost.
        state: for each of L layers the bytes of its parameters and of its optimizer's state, shape (L, 2).
        lost: the names of hosts of the cluster that are lost too.
        form: the form of the schedule of both plans, which says which stages share a submesh.
    """
    taken_in = _TakenIn(cluster, lost)
    ends = np.concatenate([np.zeros((1, 2)), np.cumsum(state, axis=0)])
    held, needed = devices_of(before, form), devices_of(after, form)
    moved: set[int] = set()
    for new, places in zip(after, needed, strict=True):
        for old, had in zip(before, held, strict=True):
            first, last = max(new.layers[0], old.layers[0]), min(new.layers[1], old.layers[1])
            for kind, num_bytes in enumerate((ends[last + 1] - ends[first]).tolist() if first <= last else ()):
                among, parts = _parts(old)[kind], _parts(new)[kind]
                for n, (host, devices) in enumerate(places.items()):
                    same = _has(new, old, devices, had.get(host)) and among == parts
                    for part, share in _overlaps(n % parts, parts, among):
                        holders = taken_in.left(old.hosts[part::among])
                        if num_bytes and not (same and host in holders):
                            taken_in.take_in(host, holders, num_bytes * share, turn=n)
                            moved.update(range(first, last + 1))
    return taken_in.moves(moved)


def _parts(stage: StagePlan) -> tuple[int, int]:
    """Returns among how many of a stage's hosts its parameters are divided, and its optimizer's state; host n has part
    n modulo that number.
    """
    tensor = max(stage.logical_mesh[-1] // stage.submesh.devices_per_host, 1)
    every = len(stage.hosts)
    return every if stage.zero == 3 else tensor, every if stage.zero else tensor


def _overlaps(part: int, parts: int, among: int) -> Iterator[tuple[int, float]]:
    """Yields the parts of another division that one part has in common with, and which share of the whole that is.

    >>> list(_overlaps(0, 2, 4)), list(_overlaps(1, 2, 1))
    ([(0, 0.25), (1, 0.25)], [(0, 0.5)])
    """
    for other in range(part * among // parts, -(-(part + 1) * among // parts)):
        low, high = max(part * among, other * parts), min((part + 1) * among, (other + 1) * parts)
        yield other, (high - low) / (parts * among)


def _has(new: StagePlan, old: StagePlan, devices: tuple[int, int], had: tuple[int, int] | None) -> bool:
    """Returns whether a host's devices hold already what they need of the layers of both stages."""
    if had is None or (new.zero, new.logical_mesh[1:]) != (old.zero, old.logical_mesh[1:]):
        return False
    inside = had[0] <= devices[0] and devices[0] + devices[1] <= had[0] + had[1]
    return inside and (not new.zero or new.logical_mesh == old.logical_mesh)


@final
class _TakenIn:
    """The training state that hosts take in, over a cluster's links and from a checkpoint."""

    def __init__(self, cluster: Cluster, lost: Collection[str]) -> None:
        self._cluster, self._traffic = cluster, Traffic(cluster)
        self._left = {host.name for host in cluster.hosts if host.name not in lost}
        self._bytes = self._read_bytes = 0.0

    def left(self, hosts: Sequence[str]) -> list[str]:
        """Returns those of some hosts that are left."""
        return [host for host in hosts if host in self._left]

    def take_in(self, host: str, sources: Sequence[str], num_bytes: float, turn: int) -> None:
        """Has a host take in some bytes over the fastest link from a host that has them; from itself over the link
        between its devices, and from a checkpoint if nobody has them.

        Args:
            host: the name of the host.
            sources: the names of the hosts that have the bytes; of many only 8 are looked at.
            num_bytes: how many they are.
            turn: the place in `sources` of the first one that is looked at.
        """
        if not sources:
            self._read_bytes += num_bytes
            return
        asked = [sources[(turn + n) % len(sources)] for n in range(min(len(sources), _ASKED))]
        asked = [host] if host in sources else asked
        self._traffic.send(min(asked, key=lambda name: self._traffic.link_s(name, host, num_bytes)), host, num_bytes)
        self._bytes += num_bytes

    def moves(self, layers: Collection[int]) -> Moves:
        """Returns what moves of some layers: all hosts take in and give at a time, over links and media."""
        moved = Moves(tuple(sorted(layers)), self._bytes, self._traffic.seconds, self._read_bytes)
        return moved.read_at(self._cluster.checkpoint_bytes_per_s)
