"""Seconds of each kind of work for all ranges of layers at once, on one submesh with one config."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._ranges import FloatArray, range_sum
from alpa_dejavu.boundary import Boundary
from alpa_dejavu.communication import CommunicationModel, Group
from alpa_dejavu.latency import LatencyModel
from alpa_dejavu.memory import ModelMemory
from alpa_dejavu.problem import Cluster, Device, MeshConfig, Model, Operators, Submesh

__all__ = ["KINDS", "Pricing"]

KINDS = (
    "compute_forward_s", "compute_backward_s", "collective_forward_s", "collective_backward_s",
    "boundary_forward_s", "boundary_backward_s", "synchronisation_s", "update_s",
)  # fmt: skip
"""What `Pricing.seconds` gives, in this order: of one micro-batch, but for the last two, which come once a step."""


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
        self._model, self._cluster, self._device = model, cluster, device
        self._latency, self._communication = latency, communication
        self._boundary = Boundary.of(model)
        self.memory = ModelMemory.of(model)
        self._predicted: dict[tuple[int, float, float], float] = {}

    def seconds(self, submesh: Submesh, config: MeshConfig) -> NDArray[np.float64]:
        """Shape (len(KINDS), L, L)."""
        forward, backward = self._compute_s(config)
        ahead, back = self._collective_s(submesh, config)
        per_step = self._per_step_s(submesh, config)
        return np.stack([forward, backward, ahead, back, *self._boundary_s(submesh), *per_step])

    def _operators_s(self, operators: Operators, across: float, along: float) -> float:
        """Seconds of a layer's operators divided among devices; alike layers share their operators."""
        key = id(operators), across, along
        if key not in self._predicted:
            self._predicted[key] = self._latency.predict(operators.split(across, along), self._device).total_s
        return self._predicted[key]

    def _compute_s(self, config: MeshConfig) -> tuple[FloatArray, FloatArray]:
        """All layers' operators divided among the devices, and the start of the computations."""
        ways, start = (config.data_parallel, config.tensor_parallel), self._device.dispatch_s
        forward = [self._operators_s(layer.forward, *ways) for layer in self._model.layers]
        if not self._model.training:
            return range_sum(forward) + start, np.zeros_like(self.memory.gradients)
        backward = [self._operators_s(layer.backward, *ways) for layer in self._model.layers]
        if config.remat == "layer":
            backward = [
                own + again if len(layer.backward) else own
                for own, again, layer in zip(backward, forward, self._model.layers, strict=True)
            ]
        return range_sum(forward) + start, range_sum(backward) + start

    def _collective_s(self, submesh: Submesh, config: MeshConfig) -> tuple[FloatArray, FloatArray]:
        """What tensor-parallel devices add up for each micro-batch, and with ZeRO-3 what data-parallel ones gather."""
        across, along = config.groups(submesh)
        group = Group(self._cluster, along, concurrent=len(across))
        price = self._communication.seconds
        exchanged = [
            0.5 * float(price("all_reduce", np.array(layer.exchanged_bytes) / len(across), group).sum())
            for layer in self._model.layers
        ]
        forward = range_sum(exchanged)
        backward = forward * (2 if config.remat == "layer" else 1) if self._model.training else np.zeros_like(forward)
        if config.zero == 3:
            sharing = Group(self._cluster, across, concurrent=len(along))
            gathered = price("all_gather", self.memory.parameters / len(along), sharing)
            forward = forward + gathered
            if self._model.training:
                scattered = price("reduce_scatter", self.memory.gradients / len(along), sharing)
                backward = backward + gathered + scattered
        return forward, backward

    def _boundary_s(self, submesh: Submesh) -> tuple[FloatArray, FloatArray]:
        """What a stage takes in from its neighbours, forward and backward.

        In one host its devices take their shares at a time; between hosts, the hosts do.
        """
        inside = len(self._cluster.hosts) == 1
        ends = (0, 0) if inside else (0, 1)
        lanes = submesh.num_devices if inside else submesh.num_hosts
        group, bound = Group(self._cluster, ends), self._boundary

        def taken(num_bytes: FloatArray, tensors: FloatArray) -> FloatArray:
            each = num_bytes / np.maximum(tensors, 1) / lanes
            return np.asarray(tensors * self._communication.seconds("send", each, group))

        return (
            taken(bound.forward_bytes, bound.forward_tensors),
            taken(bound.backward_bytes, bound.backward_tensors),
        )

    def _per_step_s(self, submesh: Submesh, config: MeshConfig) -> tuple[FloatArray, FloatArray]:
        """Synchronising the gradients of data-parallel devices; the optimizer and what the runtime adds."""
        if not self._model.training:
            return np.zeros_like(self.memory.gradients), np.full_like(self.memory.gradients, self._device.step_s)
        across, along = config.groups(submesh)
        group = Group(self._cluster, across, concurrent=len(along))
        price, gradients = self._communication.seconds, self.memory.gradients / len(along)
        if config.zero == 0:
            sync = price("all_reduce", gradients, group)
        elif config.zero == 2:
            sync = price("reduce_scatter", gradients, group) + price("all_gather", gradients, group)
        else:
            sync = np.zeros_like(gradients)
        ways = len(along) * (len(across) if config.zero else 1)
        update = [self._operators_s(layer.update, 1, ways) for layer in self._model.layers]
        return np.asarray(sync), range_sum(update) + self._device.step_s


def with_micro_batch(model: Model, ratio: float) -> Model:
    """The model with a micro-batch that is `ratio` times as large: what has a batch dimension grows by it.

    Raises:
        ValueError: a ratio that isn't positive.
    """
    if not ratio > 0:
        raise ValueError(f"the micro-batch can't become {ratio} times as large; give a positive ratio")
    grown: dict[int, Operators] = {}

    def scaled(operators: Operators) -> Operators:
        if id(operators) not in grown:
            grown[id(operators)] = operators.split(1 / ratio)
        return grown[id(operators)]

    layers = tuple(
        dataclasses.replace(
            layer,
            forward=scaled(layer.forward),
            backward=scaled(layer.backward),
            forward_temporary_bytes=layer.forward_temporary_bytes * ratio,
            backward_temporary_bytes=layer.backward_temporary_bytes * ratio,
            exchanged_bytes=tuple(num_bytes * ratio for num_bytes in layer.exchanged_bytes),
        )
        for layer in model.layers
    )
    tensors = tuple(
        dataclasses.replace(tensor, num_bytes=tensor.num_bytes * ratio)
        if tensor.role in ("activation", "input")
        else tensor
        for tensor in model.tensors
    )
    return dataclasses.replace(model, layers=layers, tensors=tensors)
