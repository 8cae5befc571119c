"""A sharded layer: its computation, its collectives and its memory on each device; stages as sums over layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray, stage_sum
from alpa_dejavu.sharding._spec import Shape

COLLECTIVE_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
COLLECTIVE_PHASES = ("forward", "backward", "gradient", "update")
"""The first two happen for each micro-batch; gradients are added up, and parameters updated, once a step."""
MEMORY = ("parameter", "optimizer", "gradient", "activation", "input", "temporary")
BoolArray = NDArray[np.bool_]
T = TypeVar("T")


@final
@dataclasses.dataclass(frozen=True)
class Collective:
    """A number of collectives of a sharded layer that are alike in kind, bytes, mesh axis and phase.

    Attributes:
        kind: "all_reduce", "all_gather", "reduce_scatter" or "all_to_all".
        num_bytes: of one of them, as `CommunicationModel.seconds` takes them: what each device holds before an
            all-reduce, a reduce-scatter or an all-to-all, and after an all-gather.
        axis: the axis of the logical mesh along which devices communicate; all groups along it do so at the same time.
        phase: "forward" or "backward" for each micro-batch, "gradient" (summing) or "update" for each step.
        count: how many collectives there are; a scan's trips count.
        batched: whether what is sent has a batch dimension: then its bytes grow as the micro-batch does.
        divided: whether mesh axis 0 cuts what `num_bytes` counts: then it shrinks as that axis gets longer.
    """

    kind: str
    num_bytes: float
    axis: int
    phase: str
    count: float = 1.0
    batched: bool = False
    divided: bool = False

    def scaled(self, factors: FloatArray) -> Collective:
        """Returns the same collectives with other bytes: `factors`, of shape (2, 2), are by whether they grow with the
        micro-batch, and whether mesh axis 0 cuts them.
        """
        factor = float(factors[int(self.batched), int(self.divided)])
        if factor == 1.0:
            return self
        # `dataclasses.replace` takes five times as long.
        return Collective(
            self.kind, self.num_bytes * factor, self.axis, self.phase, self.count, self.batched, self.divided
        )


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LayerFlow:
    """The data flow of one pass of a sharded layer: what waits for what.

    Attributes:
        collectives: the collectives of activations, those of a kind and mesh axis next to each other.
        edges: pairs of nodes, the first of which must be done before the second begins, in the order of the second;
            shape
            (edges, 2). Nodes are first the operators, in the order of `features.layer_features`, then the collectives.
    """

    collectives: tuple[Collective, ...]
    edges: NDArray[np.int32]

    def scaled(self, factors: FloatArray, alone: bool) -> LayerFlow:
        """Returns the same flow with other bytes: `factors`, of shape (2, 2), are by whether they grow with the
        micro-batch, and whether mesh axis 0 cuts them. If axis 0 is `alone`, of length 1, collectives along it take no
        time.
        """
        scaled = [sent.scaled(factors) for sent in self.collectives]
        scaled = [dataclasses.replace(sent, count=0.0) if alone and not sent.axis else sent for sent in scaled]
        return LayerFlow(tuple(scaled), self.edges)


@final
class LayerFlows:
    """The data flow of each pass of a sharded layer, derived when it is first asked for by a function of the pass."""

    def __init__(self, derive: Callable[[str], LayerFlow]) -> None:
        self._derive = derive
        self._flows: dict[str, LayerFlow] = {}

    def of(self, phase: str) -> LayerFlow:
        """Returns the flow of a pass: "forward" or "backward"."""
        if phase not in self._flows:
            self._flows[phase] = self._derive(phase)
        return self._flows[phase]

    def scaled(self, factors: FloatArray, alone: bool) -> LayerFlows:
        """Returns the flows with other bytes, as `LayerFlow.scaled` has it."""
        if not alone and (factors == 1).all():
            return self
        return LayerFlows(lambda phase: self.of(phase).scaled(factors, alone))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LayerSharding:
    """The sharding of one layer on one logical mesh: its collectives, memory and divided work.

    Bytes are of one device.

    Attributes:
        mesh_shape: the lengths of the logical mesh's axes.
        collectives: all collectives of the layer.
        memory_parts: bytes by role (parameters, optimizer state, gradients, activations, inputs, temporaries), by
            whether they grow with the micro-batch, and by whether mesh axis 0 cuts them; shape (6, 2, 2). Parameters,
            optimizer state and gradients stay for the whole training; activations are what the layer makes and keeps
            for its backward pass, of one micro-batch; inputs are what it keeps of what it gets from the layer before;
            temporaries are those of the moment at which most of them live.
        temporary_moments: temporaries of all the moments at which most of them may live once bytes are scaled to
            another micro-batch or mesh, shape (moments, 2, 2); those of the first moment are in `memory_parts`.
        forward_cuts, backward_cuts, update_cuts: for each operator of the pass, in the order of
            `features.layer_features`, which mesh axes divide its work; shape (operators, axes).
        cost: the auto-sharding engine's objective for this sharding.
        flows: what waits for what in the forward and the backward pass; None: that isn't known.
    """

    mesh_shape: Shape
    collectives: tuple[Collective, ...]
    memory_parts: FloatArray
    temporary_moments: FloatArray
    forward_cuts: BoolArray
    backward_cuts: BoolArray
    update_cuts: BoolArray
    cost: float
    flows: LayerFlows | None = None

    def cuts(self, phase: str) -> BoolArray:
        """Returns which mesh axes divide each operator's work in a phase ("step" is the update); (operators, axes)."""
        return {"forward": self.forward_cuts, "backward": self.backward_cuts, "step": self.update_cuts}[phase]

    def on(self, length: int, batch_ratio: float = 1.0) -> LayerSharding:
        """Returns a layer's sharding with bytes scaled to another length of mesh axis 0, and to micro-batches of
        `batch_ratio` times the samples that it was solved for; the engine's objective stays as it was.

        Raises:
            ValueError: axis 0 has length 1, and is to become longer: it isn't known what it would cut.
        """
        if self.mesh_shape[0] == 1 and length > 1:
            raise ValueError(f"axis 0 has length 1, which says nothing of length {length}: solve for length 2 instead")
        shorter = self.mesh_shape[0] / length
        factors = np.array([[1.0, shorter], [batch_ratio, batch_ratio * shorter]])
        moments = self.temporary_moments * factors
        moments = moments[np.argsort(-moments.sum(axis=(1, 2)), kind="stable")]
        return dataclasses.replace(
            self,
            mesh_shape=(length, *self.mesh_shape[1:]),
            collectives=tuple(sent.scaled(factors) for sent in self.collectives if sent.axis or length > 1),
            memory_parts=np.concatenate([self.memory_parts[:-1] * factors, moments[:1]]),
            temporary_moments=moments,
            flows=None if self.flows is None else self.flows.scaled(factors, length == 1),
        )

    def memory(self) -> FloatArray:
        """Returns the bytes that one device has of the layer by the roles of `MEMORY`, shape (6,)."""
        return np.asarray(self.memory_parts.sum(axis=(1, 2)))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class StageLayers:
    """The shardings of all L layers on one mesh, which may depend on the stage that a layer is part of.

    Within a stage two layers agree on the layout of the tensors that cross between them. At the ends of a stage layouts
    are free, since what crosses there is sent to another mesh. So a layer may have several shardings, its variants.

    Attributes:
        variants: the shardings that occur; the first L are those of layers 0..L-1 in the stage that has all layers.
            Layers that are alike share one object.
        numbers: for each variant the number of its layer.
        of_stages: entry [i, j, n] is the index of layer n's variant in the stage of layers i..j, -1 if n isn't among
            them; shape (L, L, L). None: each layer has one variant.
    """

    variants: tuple[LayerSharding, ...]
    numbers: tuple[int, ...]
    of_stages: NDArray[np.signedinteger] | None = None

    @property
    def whole(self) -> tuple[LayerSharding, ...]:
        """Returns each layer's sharding in the stage that has all layers, in the order of the layers."""
        return self.variants[: max(self.numbers) + 1]

    def mapped(self, change: Callable[[LayerSharding], LayerSharding]) -> StageLayers:
        """Returns a copy with each layer's sharding changed by a function; layers that are alike share one object."""
        return dataclasses.replace(self, variants=tuple(self.by_variant(change)))

    def by_variant(self, function: Callable[[LayerSharding], T]) -> list[T]:
        """Returns what a function gives for each variant; it is called once for variants that are one object."""
        different = {id(layer): layer for layer in self.variants}
        values = {key: function(layer) for key, layer in different.items()}
        return [values[id(layer)] for layer in self.variants]

    def sums(self, value: Callable[[LayerSharding], NDArray[np.float64]]) -> FloatArray:
        """Sums an array of each layer's sharding over each stage's layers; (L, L, ...), 0 below the diagonal."""
        values = np.array(self.by_variant(value), dtype=np.float64)
        summed = stage_sum(values.reshape(len(values), -1).T, self.of_stages)
        size = len(self.whole)
        return np.moveaxis(summed, 0, -1).reshape(size, size, *values.shape[1:])
