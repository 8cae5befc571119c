"""A layer, and its division among a logical mesh's devices: what each computes, sends and keeps, and in which order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import checks
from alpa_dejavu.problem._mesh import MeshConfig
from alpa_dejavu.problem._operators import Operators

FloatArray = NDArray[np.float64]
PHASES = ("forward", "backward", "step")
"""The first two come for each micro-batch, the last one once a step."""


WEIGHTS, GRADIENTS, STATES = "weights", "gradients", "optimizer's states"
INPUTS, ACTIVATIONS = "what layers take in", "other activations"
"""The parts of a stage's memory that are there all the time, and for each micro-batch in flight; others are there while
a layer is computed."""


class NoShardingError(ValueError):
    """An error that says that a logical mesh can't divide a model in the way that its options ask for."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class AxisCollectives:
    """The collectives of one kind in the groups of devices of one axis, as `MeshConfig.groups` has them.

    `kind` is a name such as "all_reduce". The two arrays have one entry for each collective, or for each range of
    layers. `num_bytes` is as a communication model takes it: what each device holds before an all-reduce, a
    reduce-scatter or an all-to-all, and after an all-gather. `counts` says how often each happens. `behind` is the
    share of its layer's attention that devices compute meanwhile, whatever else their runtime overlaps.
    """

    kind: str
    axis: int
    num_bytes: FloatArray
    counts: FloatArray
    behind: float = 0.0


@final
@dataclasses.dataclass(frozen=True, eq=False)
class MemoryShares:
    """The fractions of the tensors of a stage of layers i..j that one device keeps, each a number or of shape
    (L, L), L being the number of layers.

    `gathered` is the fraction of a parameter, and of its gradient, that a device has only while it computes with them.
    """

    parameters: FloatArray | float
    gradients: FloatArray | float
    optimizer: FloatArray | float
    activations: FloatArray | float
    layer_inputs: FloatArray | float
    temporaries: FloatArray | float
    gathered: FloatArray | float = 0.0


@final
@dataclasses.dataclass(frozen=True, eq=False)
class MemoryPart:
    """A part of what each device of a stage keeps, by what it is.

    Attributes:
        kind: "resident": all the time; "per_micro_batch": for each micro-batch in flight; "temporary": while computing.
        num_bytes: the bytes for each range of layers i..j, shape (L, L).
    """

    name: str
    kind: str
    num_bytes: FloatArray


class Division(Protocol):
    """A model divided (sharded) among the devices of one logical mesh, at one ZeRO level.

    A layer may be sharded otherwise in one stage than in another: each way is one variant of the layer.
    """

    @property
    def variants(self) -> Sequence[int]:
        """Returns for each variant (one way to shard one layer) the layer's number; the first L are 0..L-1 in order."""

    @property
    def of_stages(self) -> NDArray[np.signedinteger] | None:
        """Returns which variant (way to shard it) layer n has in the stage of layers i..j, as entry (i, j, n); -1 for
        layers outside of the stage.

        None: each layer has one variant alone.
        """

    def operators(self, phase: str, remat: str = "none") -> Sequence[Operators]:
        """Returns, for each variant of a layer (way to shard it), the operators that one device computes in a phase:
        "forward", "backward", or "step", which is the optimizer's update; with a choice of rematerialisation, but
        without what `recomputed` has.
        """

    def recomputed(self, remat: str) -> Sequence[Operators]:
        """Returns, for each variant of a layer, the operators of its forward pass that its backward pass runs again,
        with a choice of rematerialisation; NoShardingError where the division hasn't that choice.
        """

    def exchanges(self, variant: int, phase: str) -> Sequence[AxisCollectives]:
        """Returns the collectives of one variant of a layer (way to shard it) in a phase, one after the other; their
        arrays are of shape (number of unlike collectives,).
        """

    def flow(self, variant: int, phase: str) -> PassFlow | None:
        """Returns what waits for what in a pass ("forward" or "backward") of one variant of a layer (way to shard it);
        None where that isn't known, so that nothing may run beside a collective.

        Its operators are those of `operators`. Its collectives are among those of `exchanges`. Alike variants share
        one object.
        """

    def combined(self, phase: str) -> Sequence[AxisCollectives]:
        """Returns the collectives of a stage in a phase once for all its layers i..j; arrays of shape (L, L)."""

    def shares(self, phase: str) -> Sequence[AxisCollectives]:
        """Returns what each variant of a layer (way to shard it) adds to `combined` in a phase, one collective for each
        kind and mesh axis; arrays of shape (number of variants,).
        """

    def memory(self, remat: str = "none") -> MemoryShares:
        """Returns the fractions of a stage's tensors that one device keeps, with a choice of rematerialisation."""

    def parts(self, remat: str = "none") -> Sequence[MemoryPart]:
        """Returns what a device keeps, part by part; empty where only the kinds that `memory` has are known."""


class Sharding(Protocol):
    """A rule by which the devices of any logical mesh divide the layers of a model."""

    def on(self, layers: Sequence[Layer], config: MeshConfig) -> Division:
        """Returns the layers as they are divided among the devices of one logical mesh, at the config's ZeRO level."""

    def prepare(self, configs: Iterable[MeshConfig]) -> None:
        """Does in advance the work, such as solving ILPs, that dividing layers on each of these configs will need."""

    def with_micro_batch(self, ratio: float) -> Sharding:
        """Returns the sharding of the same model for a micro-batch that is `ratio` times as large."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class PassFlow:
    """The data flow of one pass of a layer on one device: which operators and collectives wait for which.

    Its nodes are first the operators, in the order of their records, and then the collectives: those of the first of
    `collectives`, in the order of its arrays, then those of the next.

    Attributes:
        collectives: the collectives of activations. Whatever else the pass sends isn't in it.
        edges: pairs of nodes, the first of which must be done before the second begins; shape (edges, 2). What comes
            from outside of the pass is there when it begins.

    Raises ValueError for an edge whose ends aren't nodes.
    """

    num_operators: int
    collectives: tuple[AxisCollectives, ...]
    edges: NDArray[np.int32]

    def __post_init__(self) -> None:
        if self.edges.size and not 0 <= self.edges.min() <= self.edges.max() < self.num_nodes:
            raise ValueError(
                f"edges is from node {self.edges.min()} to {self.edges.max()}, but must be of nodes from 0 to "
                f"{self.num_nodes - 1}; number operators first, then collectives"
            )

    @property
    def num_nodes(self) -> int:
        """Returns how many operators and collectives there are together."""
        return self.num_operators + sum(len(collective.counts) for collective in self.collectives)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class RecomputingPasses:
    """The passes of a layer whose backward pass computes its forward pass again: the operators of the passes that keep
    what they need, in the same order, as a compiler fuses them here. Those that nothing needs have no figures.

    Attributes:
        forward: the forward pass, which writes what other layers take alone.
        again: the forward pass as a part of the backward pass.
        backward: the rest of the backward pass.
        temporary_bytes: the peak bytes of tensors that live only while one of both passes is computed.
    """

    forward: Operators
    again: Operators
    backward: Operators
    temporary_bytes: float = 0.0

    def __post_init__(self) -> None:
        checks.not_negative("recomputing passes", "temporary_bytes", self.temporary_bytes)


_NOTHING = Operators.of([])


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Layer:
    """One layer of a model: its operators of the forward pass, the backward pass and the optimizer's update.

    Attributes:
        forward, backward: operators of one micro-batch (backward is empty in inference, and where nothing is trained).
        update: operators of the optimizer's step, once for all micro-batches.
        forward_temporary_bytes, backward_temporary_bytes: the peak bytes of tensors that live only while the layer's
            forward or backward pass is computed.
        exchanged_bytes: the bytes that a tensor-parallel group all-reduces for this layer and one micro-batch, forward
            and backward together: one entry for each all-reduce, of the whole (unsharded) tensor.
        recomputing: its passes where the backward one computes the forward one again; None: those, and all of the
            forward pass again.
    """

    name: str
    forward: Operators
    backward: Operators
    update: Operators
    forward_temporary_bytes: float = 0.0
    backward_temporary_bytes: float = 0.0
    exchanged_bytes: tuple[float, ...] = ()
    recomputing: RecomputingPasses | None = None

    def operators(self, phase: str, remat: str = "none") -> Operators:
        """Returns the layer's operators of a phase where it keeps what its backward pass needs ("none"), or computes it
        again ("layer"): "forward", "backward", "again" (the backward pass's other part), or "step" (the optimizer's
        update); NoShardingError for another choice of rematerialisation.
        """
        if remat not in ("none", "layer"):
            raise NoShardingError(
                f"remat is {remat!r}, but must be 'none' or 'layer' for a traced model; choose one of these, or give a "
                "transformer by its sizes with a runtime that has it"
            )
        if phase == "step":
            return self.update
        if phase == "again" and (remat == "none" or not len(self.backward)):
            return _NOTHING
        passes = self.recomputing if remat == "layer" else None
        if passes is not None:
            return {"forward": passes.forward, "again": passes.again, "backward": passes.backward}[phase]
        return self.backward if phase == "backward" else self.forward

    @property
    def recomputes(self) -> bool:
        """Returns whether the model itself asks that the backward pass computes a part of the forward pass again."""
        return self.backward.repeats

    def __post_init__(self) -> None:
        for field in ("forward_temporary_bytes", "backward_temporary_bytes"):
            checks.not_negative(f"layer {self.name}", field, getattr(self, field))
