"""What stages cost on the very devices that they are on, over the links between these: one measure for all strategies.

The same operators, divisions and communication model as in the planner's cost table. Here each device of a stage has
its host, so a stage takes as long as its slowest device and its slowest group, and has the memory of its smallest
device.
"""

from __future__ import annotations

import collections
import functools
import itertools
import types
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._ranges import FloatArray
from alpa_dejavu.boundary import Boundary
from alpa_dejavu.communication import CommunicationModel, Free, Group
from alpa_dejavu.latency import LatencyModel
from alpa_dejavu.memory import ModelMemory, StageMemory
from alpa_dejavu.pricing import KINDS, Pricing
from alpa_dejavu.problem import Cluster, Device, Division, MeshConfig, Model, Submesh
from alpa_dejavu.simulate import StageTimes
from alpa_dejavu.strategies._stages import PlacedStage

__all__ = ["SitePricing"]

NOBODY: Mapping[tuple[int, int], int] = types.MappingProxyType({})
_FORWARD, _BACKWARD, _UPDATE = (KINDS.index(f"{name}_s") for name in ("compute_forward", "compute_backward", "update"))


@final
class SitePricing:
    """Prices of a model, of one size of micro-batch, on a cluster."""

    def __init__(
        self, model: Model, cluster: Cluster, latency: LatencyModel, communication: CommunicationModel
    ) -> None:
        self.model, self.cluster = model, cluster
        self._latency, self._communication = latency, communication
        self.boundary = Boundary.of(model)
        self._pricings: dict[Device, Pricing] = {}
        self._alone: dict[tuple[Device, int, int, str, int, bool], NDArray[np.float64]] = {}

    @functools.cached_property
    def gradient_bytes(self) -> FloatArray:
        """Of all trained parameters of layers i..j, shape (L, L)."""
        return ModelMemory.of(self.model).gradients

    def compute_s(self, device: Device, config: MeshConfig) -> FloatArray:
        """Forward and backward of layers i..j on one of the devices that divide them, shape (L, L)."""
        alone = self._computed(device, config)
        return np.asarray(alone[_FORWARD] + alone[_BACKWARD])

    def division(self, config: MeshConfig) -> Division:
        """What each device computes, sends and keeps."""
        return self._pricing(self.cluster.hosts[0].device).division(config)

    def memory(self, config: MeshConfig) -> StageMemory:
        """What each device keeps of layers i..j."""
        return self._pricing(self.cluster.hosts[0].device).memory(config)

    def send_s(
        self, sender: PlacedStage, receiver: PlacedStage, at_a_time: Mapping[tuple[int, int], int] = NOBODY
    ) -> float:
        """What the receiver takes in of one micro-batch, from the stage before it or, backward, after it.

        Within a host its devices take their shares at a time; between hosts, the hosts do, over the slowest way, where
        `at_a_time` says how many pipelines send from one host to another if there are several.
        """
        backward = sender.first > receiver.first
        where, bound = (receiver.first, receiver.last), self.boundary
        num_bytes = float((bound.backward_bytes if backward else bound.forward_bytes)[where])
        tensors = float((bound.backward_tensors if backward else bound.forward_tensors)[where])
        sending, receiving = sorted(set(sender.hosts)), sorted(set(receiver.hosts))
        inside = sending == receiving and len(sending) == 1
        ends = [(sending[0],) * 2] if inside else [(a, b) for a in sending for b in receiving if a != b]
        each = num_bytes / max(tensors, 1.0) / (len(receiver.hosts) if inside else len(receiving))
        groups = [self._group(pair, at_a_time.get(pair, 1)) for pair in ends]
        return max(tensors * float(self._communication.seconds("send", each, group)) for group in groups)

    def stage_times(
        self, stages: Sequence[PlacedStage], at_a_time: Mapping[tuple[int, int], int] = NOBODY
    ) -> tuple[StageTimes, ...]:
        """What the simulation needs to know of a pipeline's stages; `at_a_time` as `send_s` takes it."""
        ahead = [self.send_s(a, b, at_a_time) for a, b in itertools.pairwise(stages)]
        back = [self.send_s(b, a, at_a_time) for a, b in itertools.pairwise(stages)]
        return tuple(
            self._times(stage, sends)
            for stage, *sends in zip(stages, [*ahead, 0.0], [0.0, *back], strict=True)
        )

    def _times(self, stage: PlacedStage, sends: Sequence[float]) -> StageTimes:
        where, config = (stage.first, stage.last), stage.config
        devices = [self.cluster.hosts[host].device for host in dict.fromkeys(stage.hosts)]
        slowest = np.max([self._computed(device, config)[:, stage.first, stage.last] for device in devices], axis=0)
        forward, backward, synchronisation = self._collectives_s(stage)
        memory = self._pricing(devices[0]).memory(config)
        return StageTimes(
            forward_s=float(slowest[_FORWARD]) + forward,
            backward_s=float(slowest[_BACKWARD]) + backward,
            per_step_s=float(slowest[_UPDATE]) + synchronisation,
            forward_send_s=sends[0],
            backward_send_s=sends[1],
            forward_collective_s=forward,
            backward_collective_s=backward,
            synchronisation_s=synchronisation,
            activation_bytes=float(memory.per_micro_batch[where]),
            resident_bytes=float(memory.resident[where]),
            temporary_bytes=float(memory.temporary[where]),
            memory_limit_bytes=min(device.memory_bytes for device in devices),
            devices=len(stage.hosts),
        )

    def _collectives_s(self, stage: PlacedStage) -> tuple[float, float, float]:
        """Forward and backward of a micro-batch, and once a step."""
        division = self.division(stage.config)
        layers = range(stage.first, stage.last + 1)
        of_stages = division.of_stages
        variants = list(layers) if of_stages is None else of_stages[stage.first, stage.last, layers].tolist()
        ahead = [self._exchanges_s(stage, division, n, "forward") for n in variants]
        back = [self._exchanges_s(stage, division, n, "backward") for n in variants]
        if stage.config.remat == "layer":
            trains = [len(self.model.layers[layer].backward) > 0 for layer in layers]
            back = [own + again * on for own, again, on in zip(back, ahead, trains, strict=True)]
        forward, backward, step = (
            self._combined_s(stage, division, phase) for phase in ("forward", "backward", "step")
        )
        return sum(ahead) + forward, sum(back) + backward, step

    def _exchanges_s(self, stage: PlacedStage, division: Division, variant: int, phase: str) -> float:
        found = division.exchanges(variant, phase)
        return sum(float(self._sent_s(stage, one.kind, one.axis, one.num_bytes) @ one.counts) for one in found)

    def _combined_s(self, stage: PlacedStage, division: Division, phase: str) -> float:
        where = stage.first, stage.last
        return sum(
            float(self._sent_s(stage, one.kind, one.axis, one.num_bytes[where]) * one.counts[where])
            for one in division.combined(phase)
        )

    def _sent_s(self, stage: PlacedStage, kind: str, axis: int, num_bytes: FloatArray) -> FloatArray:
        """Each of some collectives, in the slowest of the groups along an axis; all of them are at it at a time."""
        config = stage.config
        at_a_time = config.tensor_parallel if axis == 0 else config.data_parallel
        at_a_time *= self._abreast(stage)
        groups = [self._group(hosts, at_a_time) for hosts in stage.groups(axis)]
        return np.max([self._communication.seconds(kind, num_bytes, group) for group in groups], axis=0)

    def _abreast(self, stage: PlacedStage) -> int:
        """How many stages of its size share the hosts of a stage on several: all are at it at a time."""
        taken = collections.Counter(stage.hosts)
        return min(self.cluster.hosts[host].num_devices // n for host, n in taken.items()) if len(taken) > 1 else 1

    def all_reduce_s(self, num_bytes: float, hosts: tuple[int, ...], at_a_time: int) -> float:
        """Among devices on these hosts, with so many such groups."""
        return float(self._communication.seconds("all_reduce", num_bytes, self._group(hosts, at_a_time)))

    def _group(self, hosts: tuple[int, ...], at_a_time: int = 1) -> Group:
        return Group(self.cluster, hosts, at_a_time)

    def _computed(self, device: Device, config: MeshConfig) -> NDArray[np.float64]:
        """By `KINDS`, without what is sent; shape (len(KINDS), L, L)."""
        key = (
            device, config.data_parallel, config.tensor_parallel, config.remat, config.zero, config.batch_forced,
        )  # fmt: skip
        if key not in self._alone:
            submesh = Submesh(1, config.data_parallel * config.tensor_parallel)
            self._alone[key] = self._pricing(device).seconds(submesh, config)
        return self._alone[key]

    def _pricing(self, device: Device) -> Pricing:
        if device not in self._pricings:
            self._pricings[device] = Pricing(self.model, self.cluster, device, self._latency, Free())
        return self._pricings[device]
