"""Finds what moves when one plan follows another: parameters and optimizer's state of layers that change hosts."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.problem import Cluster, Model, Moves, StagePlan
from alpa_dejavu.problem.run import ScheduleForm

_ONE_EACH = ScheduleForm()
_ASKED = 8
"""Among so many hosts that have what another lacks, the one with the fastest link is looked for."""


def layer_state(model: Model) -> FloatArray:
    """Returns for each layer the bytes of its parameters (shared ones with the first) and optimizer's state, (L, 2)."""
    num_bytes = np.zeros((model.num_layers, 2))
    for tensor in model.tensors:
        if tensor.role in ("parameter", "optimizer") and tensor.users:
            layer = min(model.layer_of(position) for position in tensor.users)
            num_bytes[layer, int(tensor.role == "optimizer")] += tensor.num_bytes
    return num_bytes


def devices_of(stages: Sequence[StagePlan], form: ScheduleForm = _ONE_EACH) -> list[dict[str, tuple[int, int]]]:
    """Returns for each stage by host name the index of the first device that it takes there, and how many it takes.

    Stages with more devices on each host take theirs first; among equal ones the last stage does, as in Alpa's
    `get_sliced_virtual_submeshes`. Stages that share a submesh in schedules of a form have the same ones.
    """
    count = len(stages) // form.chunks
    used, devices = defaultdict[str, int](int), [dict[str, tuple[int, int]]() for _ in range(count)]
    for n in sorted(range(count), key=lambda n: (stages[n].submesh.devices_per_host, n), reverse=True):
        per_host = stages[n].submesh.devices_per_host
        for host in stages[n].hosts:
            devices[n][host] = used[host], per_host
            used[host] += per_host
    return [devices[submesh] for submesh in form.submesh_of(len(stages))]


def _both(new: StagePlan, old: StagePlan) -> tuple[int, int]:
    """Returns the first layer that both stages have, and the one behind the last; equal if they have none."""
    first, last = max(new.layers[0], old.layers[0]), min(new.layers[1], old.layers[1])
    return first, max(last + 1, first)


@final
class Settler:
    """A placer of a new plan's stages on those alike hosts that hold most of the state they need, by the stages
    `before`, the number of devices of each host, lost ones too, and `layer_state`. A host's stages go to one other
    host, so that no seconds change.
    """

    def __init__(
        self, stages: Sequence[StagePlan], before: Sequence[StagePlan], hosts: Mapping[str, int], state: FloatArray
    ) -> None:
        self._names = list(hosts)
        ends = np.concatenate([[0.0], np.cumsum(state.sum(axis=1))])
        ranges = [[_both(new, old) for old in before] for new in stages]
        common = np.array([[float(ends[end] - ends[first]) for first, end in row] for row in ranges])
        on_host = [[name in old_hosts for name in self._names] for old_hosts in (set(old.hosts) for old in before)]
        self._has = common @ np.array(on_host)

    def settled(self, stages: Sequence[StagePlan], lost: Collection[str]) -> tuple[StagePlan, ...]:
        """Returns the stages on those hosts, not lost, that hold most of their state; as they are if too few."""
        asked = list(dict.fromkeys(name for stage in stages for name in stage.hosts))
        free = [n for n, name in enumerate(self._names) if name not in lost]
        if len(asked) > len(free):
            return tuple(stages)
        needs = np.array([[name in stage.hosts for stage in stages] for name in asked], dtype=np.float64)
        has, columns, used = needs @ self._has[:, free], dict[int, int](), set[int]()
        # Each row has a column of its own: those that have most in common first.
        for place in np.argsort(-has, axis=None, kind="stable").tolist():
            row, column = divmod(place, has.shape[1])
            if row not in columns and column not in used:
                columns[row] = column
                used.add(column)
        new = {name: self._names[free[columns[row]]] for row, name in enumerate(asked)}
        return tuple(dataclasses.replace(stage, hosts=tuple(new[name] for name in stage.hosts)) for stage in stages)


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
    from the hosts of the other parts, and what no host has that is left comes from a checkpoint. Hosts take in from the
    one with the fastest link among those that have it, of many only 8, or from themselves; all at the same time.
    `cluster` has the hosts of the new plan; others, and those in `lost`, are lost. `state` has shape (L, 2).
    """
    traffic, left = Traffic(cluster), {host.name for host in cluster.hosts if host.name not in lost}
    ends = np.concatenate([np.zeros((1, 2)), np.cumsum(state, axis=0)])
    moved, moved_bytes, read_bytes = set[int](), 0.0, 0.0
    held_before = devices_of(before, form)
    for new, places in zip(after, devices_of(after, form), strict=True):
        for old, had in zip(before, held_before, strict=True):
            first, end = _both(new, old)
            for kind, num_bytes in enumerate((ends[end] - ends[first]).tolist() if first < end else ()):
                among, parts = _parts(old)[kind], _parts(new)[kind]
                for n, (host, devices) in enumerate(places.items()):
                    same = _has(new, old, devices, had.get(host)) and among == parts
                    for part, share in _overlaps(n % parts, parts, among):
                        holders = [name for name in old.hosts[part::among] if name in left]
                        if not num_bytes or (same and host in holders):
                            continue
                        moved.update(range(first, end))
                        if not holders:
                            read_bytes += num_bytes * share
                            continue
                        turns = range(n, n + min(len(holders), _ASKED))
                        asked = [host] if host in holders else [holders[turn % len(holders)] for turn in turns]
                        traffic.send_fastest(asked, host, num_bytes * share)
                        moved_bytes += num_bytes * share
    whole = Moves(tuple(sorted(moved)), moved_bytes, traffic.seconds, read_bytes)
    return whole.read_at(cluster.checkpoint_bytes_per_s)


def _parts(stage: StagePlan) -> tuple[int, int]:
    """Returns among how many hosts a stage's parameters, and state, are divided; host n has n modulo that."""
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
class Traffic:
    """All that the hosts of a cluster send at a time: each sends, and takes in, one thing after another."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._numbers = cluster, cluster.host_numbers
        self._sent_s, self._arrived_s = defaultdict[str, float](float), defaultdict[str, float](float)
        self._media_bytes = defaultdict[str, float](float)

    def _link_s(self, source: str, target: str, num_bytes: float) -> float:
        """Returns the seconds of some bytes from one host to another, alone on their link."""
        latency_s, bytes_per_s = self._cluster.links[self._numbers[source]][self._numbers[target]].sending
        return latency_s + num_bytes / bytes_per_s

    def ready_s(self, source: str, target: str, num_bytes: float) -> float:
        """Returns when a host would have taken in some bytes, behind all that it takes in already."""
        return self._arrived_s[target] + self._link_s(source, target, num_bytes)

    def send_fastest(self, sources: Sequence[str], target: str, num_bytes: float) -> None:
        """Adds bytes that the host with the fastest link sends to another."""
        self.send(min(sources, key=lambda source: self._link_s(source, target, num_bytes)), target, num_bytes)

    def send(self, source: str, target: str, num_bytes: float) -> None:
        """Adds bytes that one host sends to another; to itself over the link between its devices."""
        self._arrived_s[target] = self.ready_s(source, target, num_bytes)
        self._sent_s[source] += self._link_s(source, target, num_bytes)
        for medium in self._cluster.links[self._numbers[source]][self._numbers[target]].shares:
            self._media_bytes[medium] += num_bytes

    @property
    def seconds(self) -> float:
        """Returns the seconds until all has arrived: those of the busiest host, or of the busiest medium."""
        media = [self._media_bytes[name] / rate for name, rate in self._cluster.media.items()]
        return max([*media, *self._sent_s.values(), *self._arrived_s.values()], default=0.0)
