"""The work of a plan's stages in each pass: computing layer by layer, and collectives among their devices.

The plan says how long each pass takes; the cost models that priced it say what share each layer has in that, and
which collectives there are, of how many bytes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple, final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.costs.stage_costs import StageCostModel
from alpa_dejavu.costs.stage_devices import StageDevices
from alpa_dejavu.planning import given_stages
from alpa_dejavu.problem import MeshConfig, Plan
from alpa_dejavu.simulation import StageTimes


class WorkPart(NamedTuple):
    """A part of a pass: computing, or a collective ("all_reduce", ...) in the groups of an axis, as `MeshConfig` has
    them.

    Several of a layer of the same kind along one axis are one part, whose bytes are added up: those that each device
    holds before the collective, and `whole_bytes`, for an all-gather, those after it.
    """

    name: str
    seconds: float
    collective: str = ""
    axis: int = 0
    num_bytes: float = 0.0
    whole_bytes: float = 0.0


@final
@dataclasses.dataclass(frozen=True)
class StageWork:
    """The parts of all passes of a stage, in order."""

    config: MeshConfig  # the mesh config that says which devices form the groups of each axis
    parts: dict[str, tuple[WorkPart, ...]]  # of each kind of simulated task, and of "synchronise" after the last one


def stage_works(plan: Plan, times: Sequence[StageTimes], costs: StageCostModel) -> list[StageWork]:
    """Returns what each stage of a plan does, in parts that add up to its seconds in `times`; `costs` tell layers
    apart. Raises ValueError if they are of another number of layers.
    """
    if plan.num_layers != costs.model.num_layers:
        raise ValueError(
            f"the plan has {plan.num_layers} layers, but must have the {costs.model.num_layers} of its model; plan "
            "again"
        )
    index = {host.name: n for n, host in enumerate(costs.cluster.hosts)}
    works = []
    for kept, stage, seconds in zip(given_stages(plan), plan.stages, times, strict=True):
        on = [index[name] for name in stage.hosts for _ in range(stage.submesh.devices_per_host)]
        works.append(_WorkPricer(costs, costs.places.on(on), kept.config, stage.layers).work(seconds))
    return works


@final
@dataclasses.dataclass(frozen=True)
class _WorkPricer:
    costs: StageCostModel
    devices: StageDevices
    config: MeshConfig
    layers: tuple[int, int]

    def work(self, times: StageTimes) -> StageWork:
        """Returns what the stage does in each pass."""
        forward, backward = self.costs.computed_s(self.devices, self.config)[:2]
        sent_s, weight_s = (times.backward_collective_s, times.backward_copies_s), times.backward_weight_s
        ahead = self._pass("forward", forward, times.forward_s, times.forward_collective_s, times.forward_copies_s)
        parts = {
            "forward": ahead,
            "backward": self._pass("backward", backward, times.backward_s, *sent_s),
            "backward by input": self._pass("backward", backward, times.backward_s - weight_s, *sent_s),
            "backward by weight": self._computing("weights of", backward, weight_s, reverse=True),
            "synchronise": _scaled(self._combined("step"), times.synchronisation_s, "gradients"),
            "update": [WorkPart("optimizer", times.per_step_s - times.synchronisation_s)],
        }
        return StageWork(self.config, {name: tuple(passed) for name, passed in parts.items()})

    def _pass(
        self, phase: str, seconds: FloatArray, whole_s: float, collective_s: float, copies_s: float
    ) -> list[WorkPart]:
        """Returns the parts of a pass: layer by layer, and in the end what all layers send as one."""
        back = phase == "backward"
        computed = self._computing(phase, seconds, max(whole_s - collective_s, 0.0), back)
        sent = [self._layer_sends(phase, layer) for layer in self._order(back)]
        last = self._combined(phase)
        every = _scaled(itertools.chain(*sent, last), collective_s - copies_s, f"{phase} exchanges")
        counts = [len(sends) for sends in sent]
        if sum(counts) + len(last) != len(every):  # no collective is known, but some seconds are
            counts = [0] * len(counts)
        pieces: list[WorkPart] = [WorkPart("copies from and to the host", copies_s)] if copies_s > 0 else []
        begin = 0
        for part, count in zip(computed, counts, strict=True):
            pieces += [part, *every[begin : begin + count]]
            begin += count
        return pieces + every[begin:]

    def _computing(self, name: str, seconds: FloatArray, total_s: float, reverse: bool) -> list[WorkPart]:
        order = self._order(reverse)
        weights = np.array([seconds[layer, layer] for layer in order])
        weights = weights / weights.sum() if weights.sum() > 0 else np.full(len(order), 1 / len(order))
        return [WorkPart(f"{name} layer {n}", float(total_s * share)) for n, share in zip(order, weights, strict=True)]

    def _order(self, reverse: bool) -> list[int]:
        first, last = self.layers
        return [*range(last, first - 1, -1)] if reverse else [*range(first, last + 1)]

    def _layer_sends(self, phase: str, layer: int) -> list[tuple[WorkPart, float]]:
        """Returns a layer's collectives, those of a kind along an axis as one, with their predicted seconds."""
        division, (first, last) = self.costs.division(self.config), self.layers
        variant = layer if division.of_stages is None else int(division.of_stages[first, last, layer])
        phases = [phase]
        again = self.costs.exchanges_again(self.config, self.devices.kinds[0], self.layers)
        if phase == "backward" and again[variant]:
            phases = ["forward", "backward"]  # what is computed again is sent again
        totals: dict[tuple[str, int], list[float]] = {}
        for sending in phases:
            for collective in division.exchanges(variant, sending):
                if self.config.ways(collective.axis) == 1:
                    continue
                seconds = float(self.costs.sent_s(self.devices, self.config, collective, sending) @ collective.counts)
                total = totals.setdefault((collective.kind, collective.axis), [0.0, 0.0])
                total[0] += float(collective.num_bytes @ collective.counts)
                total[1] += seconds
        return [
            (self._part(f"{phase} layer {layer}", *key, num_bytes), seconds)
            for key, (num_bytes, seconds) in totals.items()
        ]

    def _combined(self, phase: str) -> list[tuple[WorkPart, float]]:
        """Returns the collectives of all layers together."""
        parts = []
        for collective, seconds in self.costs.combined(self.devices, self.config, phase):
            if self.config.ways(collective.axis) > 1:
                num_bytes = float((collective.num_bytes * collective.counts)[self.layers])
                part = self._part(f"{phase} all layers", collective.kind, collective.axis, num_bytes)
                parts.append((part, float(seconds[self.layers])))
        return parts

    def _part(self, name: str, kind: str, axis: int, num_bytes: float) -> WorkPart:
        before_bytes = num_bytes / self.config.ways(axis) if kind == "all_gather" else num_bytes
        return WorkPart(f"{name} {kind}", 0.0, kind, axis, before_bytes, num_bytes)


def _scaled(parts: Iterable[tuple[WorkPart, float]], total_s: float, name: str) -> list[WorkPart]:
    """Returns parts that take so long together, each as large a share of that as of the predicted seconds."""
    every = list(parts)
    predicted_s = sum(seconds for _, seconds in every)
    if predicted_s <= 0:
        return [WorkPart(name, total_s)] if total_s > 0 else [part for part, _ in every]
    return [part._replace(seconds=total_s * seconds / predicted_s) for part, seconds in every]
