"""Seconds of each kind of work for all ranges of layers at once, on one submesh with one config."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._even import EvenDivision
from alpa_dejavu._groups import unlike_groups
from alpa_dejavu._ranges import FloatArray, stage_sum
from alpa_dejavu._slow_inside import takes_part_of_several
from alpa_dejavu._ties import rounded
from alpa_dejavu._together import SentSeconds, latencies
from alpa_dejavu.boundary import Boundary
from alpa_dejavu.communication import CommunicationModel, Group
from alpa_dejavu.latency import Latency, LatencyModel
from alpa_dejavu.memory import ModelMemory, StageMemory, stage_memory
from alpa_dejavu.problem import PHASES, Cluster, Device, Division, Exchange, MeshConfig, Model, Operators, Submesh

__all__ = ["KINDS", "Pricing"]

KINDS = (
    "compute_forward_s", "compute_backward_s", "collective_forward_s", "collective_backward_s",
    "boundary_forward_s", "boundary_backward_s", "synchronisation_s", "update_s",
)  # fmt: skip
"""What `Pricing.seconds` gives, in this order: of one micro-batch, but for the last two, which come once a step."""


_Mesh = tuple[int, int, int, bool]
"""What tells divisions apart: a config but for its remat."""


@final
class Pricing:
    """Prices of a model on a cluster; what doesn't depend on the mesh is computed once."""

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        device: Device,
        latency: LatencyModel,
        communication: CommunicationModel,
    ) -> None:
        self.model, self.cluster, self.device = model, cluster, device
        self.latency, self.communication = latency, communication
        self._boundary = Boundary.of(model)
        self._whole = ModelMemory.of(model)
        self._divisions: dict[_Mesh, Division] = {}
        self._predicted: dict[int, tuple[Operators, Latency, float]] = {}
        self.hosts: tuple[int, ...] | None = None
        self._on_devices: dict[Device, dict[int, tuple[Operators, Latency, float]]] = {device: self._predicted}
        self._sent: dict[tuple[Submesh, _Mesh, str], list[tuple[Exchange, FloatArray]]] = {}
        self._together: dict[tuple[_Mesh, str], Sequence[Exchange]] = {}
        self._sent_s = SentSeconds(communication)

    def prepare(self, choices: Iterable[tuple[Submesh, MeshConfig]]) -> None:
        """Predicts together what the prices of some submeshes with configs need; without it they come one by one."""
        meshes = {(submesh, _mesh(config)): config for submesh, config in choices}
        wanted: dict[int, Operators] = {}
        for config in {mesh: config for (_, mesh), config in meshes.items()}.values():
            division = self.division(config)
            asked = (division.operators(n, phase) for n in range(len(division.variants)) for phase in PHASES)
            wanted |= {id(one): one for one in asked if id(one) not in self._predicted}
        found = latencies(self.latency, list(wanted.values()), self.device)
        for one, latency in zip(wanted.values(), found, strict=True):
            self._predicted[id(one)] = one, latency, latency.total_s
        self._sent_s.ask(
            (one.kind, one.num_bytes, self.group(submesh, config, one.axis))
            for (submesh, _), config in meshes.items()
            for one in self._all_sent(config)
        )

    def _all_sent(self, config: MeshConfig) -> list[Exchange]:
        """What the devices of any stage send, all phases together, alike layers once."""
        division, each = self.division(config), dict[int, Exchange]()
        for phase in PHASES:
            for n in range(len(division.variants)):
                each |= {id(one): one for one in division.exchanges(n, phase)}
        return [*each.values(), *(one for phase in PHASES for one in self._combined_of(config, phase))]

    def on_hosts(self, device: Device, hosts: tuple[int, ...]) -> Pricing:
        """The same on a submesh of these hosts, by their index in the cluster, at the rate of this device.

        What doesn't depend on the device is shared, and so is what does with others on the same device. What crosses to
        other stages isn't priced here: it depends on where they are.
        """
        other = copy.copy(self)
        other.device, other.hosts = device, hosts
        other._predicted = self._on_devices.setdefault(device, {})
        other._sent = {}
        return other

    def seconds(self, submesh: Submesh, config: MeshConfig) -> NDArray[np.float64]:
        """Shape (len(KINDS), L, L), rounded: layers alike make entries alike, whatever stands before them in a sum."""
        forward, backward = self._compute_s(config)
        ahead, back = self._collective_s(submesh, config)
        update = self._summed(config, self._operators_s(config, "step")) + self.device.step_s
        sync = self._combined_s(submesh, config, "step")
        return rounded(np.stack([forward, backward, ahead, back, *self.boundary_s(submesh), sync, update]))

    def memory(self, config: MeshConfig) -> StageMemory:
        """What each device keeps."""
        return stage_memory(self._whole, self.division(config).memory(), config.remat == "layer")

    def division(self, config: MeshConfig) -> Division:
        """What each device computes, sends and keeps."""
        key = _mesh(config)
        if key not in self._divisions:
            sharding = self.model.sharding
            self._divisions[key] = (
                EvenDivision(self.model, self._whole, *key[:3])
                if sharding is None
                else sharding.on(self.model.layers, config)
            )
        return self._divisions[key]

    def _operators_s(self, config: MeshConfig, phase: str) -> FloatArray:
        """Seconds of each layer's operators on one device; by variant."""
        division = self.division(config)
        alone = np.array([self._priced(division.operators(n, phase))[2] for n in range(len(division.variants))])
        return alone * self.crowding(config)

    def crowding(self, config: MeshConfig) -> float:
        """How many times longer operators take than on a device alone."""
        return self.device.crowding if config.data_parallel * config.tensor_parallel > 1 else 1.0

    def _priced(self, operators: Operators) -> tuple[Operators, Latency, float]:
        """Alike layers share their operators."""
        if id(operators) not in self._predicted:
            latency = self.latency.predict(operators, self.device)
            self._predicted[id(operators)] = operators, latency, latency.total_s
        return self._predicted[id(operators)]

    def latency_of(self, operators: Operators) -> Latency:
        """Of operators that a division has."""
        return self._priced(operators)[1]

    def _compute_s(self, config: MeshConfig) -> tuple[FloatArray, FloatArray]:
        """All layers' operators divided among the devices, and the start of the computations."""
        start, forward = self.device.dispatch_s, self._operators_s(config, "forward")
        if not self.model.training:
            return self._summed(config, forward) + start, np.zeros_like(self._whole.gradients)
        backward = self._operators_s(config, "backward")
        if config.remat == "layer":
            backward = self._again(config, backward, forward)
        return self._summed(config, forward) + start, self._summed(config, backward) + start

    def _again(self, config: MeshConfig, backward: FloatArray, forward: FloatArray) -> FloatArray:
        """Backward with the forward pass before it, where there is a backward pass."""
        return backward + forward * self.trains(config)

    def trains(self, config: MeshConfig) -> NDArray[np.bool_]:
        """Whether each variant has a backward pass."""
        layers = self.model.layers
        return np.array([len(layers[n].backward) > 0 for n in self.division(config).variants])

    def _summed(self, config: MeshConfig, values: FloatArray) -> FloatArray:
        """Of all stages, from what the layers' variants take."""
        return stage_sum(values, self.division(config).of_stages)

    def _collective_s(self, submesh: Submesh, config: MeshConfig) -> tuple[FloatArray, FloatArray]:
        """What the devices of a stage send each other for each micro-batch."""
        forward = self._exchanges_s(submesh, config, "forward")
        ahead = self._summed(config, forward) + self._combined_s(submesh, config, "forward")
        if not self.model.training:
            return ahead, np.zeros_like(ahead)
        backward = self._exchanges_s(submesh, config, "backward")
        if config.remat == "layer":
            backward = self._again(config, backward, forward)
        return ahead, self._summed(config, backward) + self._combined_s(submesh, config, "backward")

    def _exchanges_s(self, submesh: Submesh, config: MeshConfig, phase: str) -> FloatArray:
        """Of each layer, one exchange after the other; by variant."""
        division, known = self.division(config), dict[tuple[int, ...], tuple[Sequence[Exchange], float]]()
        found = np.zeros(len(division.variants))
        for n in range(len(found)):
            exchanges = division.exchanges(n, phase)
            key = tuple(id(one) for one in exchanges)
            if key not in known:
                total = sum(float(self.sent_s(submesh, config, one) @ one.counts) for one in exchanges)
                known[key] = exchanges, total  # they are kept, so that their ids stay theirs
            found[n] = known[key][1]
        return found

    def _combined_s(self, submesh: Submesh, config: MeshConfig, phase: str) -> FloatArray:
        """Of each range of layers, all sent as one."""
        total = np.zeros_like(self._whole.parameters)
        return sum((seconds for _, seconds in self.combined(submesh, config, phase)), total)

    def combined(self, submesh: Submesh, config: MeshConfig, phase: str) -> list[tuple[Exchange, FloatArray]]:
        """What each range of layers sends as one, with its seconds, of shape (L, L)."""
        key = submesh, _mesh(config), phase
        if key not in self._sent:
            exchanges = self._combined_of(config, phase)
            self._sent[key] = [(one, self.sent_s(submesh, config, one) * one.counts) for one in exchanges]
        return self._sent[key]

    def _combined_of(self, config: MeshConfig, phase: str) -> Sequence[Exchange]:
        key = _mesh(config), phase
        if key not in self._together:
            self._together[key] = self.division(config).combined(phase)
        return self._together[key]

    def sent_s(self, submesh: Submesh, config: MeshConfig, exchange: Exchange) -> FloatArray:
        """Each of some collectives; all groups along an axis are at it at a time."""
        group = self.group(submesh, config, exchange.axis)
        found = self._sent_s.seconds(exchange.kind, exchange.num_bytes, group)
        if self.hosts is not None:
            for other in unlike_groups(self.cluster, self.hosts, submesh, config, exchange.axis)[1:]:
                group = dataclasses.replace(group, hosts=other)
                found = np.maximum(found, self._sent_s.seconds(exchange.kind, exchange.num_bytes, group))
        return found

    def group(self, submesh: Submesh, config: MeshConfig, axis: int) -> Group:
        """The devices along an axis of a submesh's logical mesh, in the first such group."""
        hosts = config.groups(submesh)
        chosen = hosts[axis] if self.hosts is None else tuple(self.hosts[host] for host in hosts[axis])
        # What is left of its hosts is other stages', whose groups are at it at the same time.
        several = takes_part_of_several(submesh, self.cluster) and self.hosts is None
        abreast = self.cluster.hosts[0].num_devices // submesh.devices_per_host if several else 1
        return Group(self.cluster, chosen, concurrent=len(hosts[1 - axis]) * abreast)

    def boundary_s(self, submesh: Submesh) -> tuple[FloatArray, FloatArray]:
        """What a stage takes in from its neighbours, forward and backward, each of shape (L, L).

        Nothing where it depends on the neighbours' hosts: see `alpa_dejavu.crossing`.
        """
        if self.hosts is not None:
            return np.zeros_like(self._boundary.forward_bytes), np.zeros_like(self._boundary.backward_bytes)
        return self._boundary.taken_s(submesh, self.cluster, self.communication)

    def largest_sent(self, submesh: Submesh) -> float:
        """Bytes of the largest tensor that a stage takes in, as one of its devices or hosts does."""
        return self._boundary.largest_sent(submesh, self.cluster)


def _mesh(config: MeshConfig) -> _Mesh:
    return config.data_parallel, config.tensor_parallel, config.zero, config.batch_forced
