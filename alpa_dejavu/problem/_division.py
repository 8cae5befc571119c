"""The division of a model's work among a logical mesh's devices: what each computes, sends and keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem._layer import Layer
from alpa_dejavu.problem._mesh import MeshConfig
from alpa_dejavu.problem._operators import Operators

FloatArray = NDArray[np.float64]
PHASES = ("forward", "backward", "step")
"""The first two come for each micro-batch, the last one once a step."""


class NoShardingError(ValueError):
    """A mesh can't divide a model in the way that its options ask for."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class AxisCollectives:
    """The collectives of one kind along one axis of the logical mesh (0: data parallel, 1: tensor parallel).

    `num_bytes` is as a communication model takes it: what each device holds before an all-reduce, a reduce-scatter or
    an all-to-all, and after an all-gather. `counts` says how often each happens.
    """

    kind: str
    axis: int
    num_bytes: FloatArray
    counts: FloatArray


@final
@dataclasses.dataclass(frozen=True, eq=False)
class MemoryShares:
    """The shares of the whole tensors of layers i..j that one device keeps, each a number or of shape (L, L)."""

    parameters: FloatArray | float
    gradients: FloatArray | float
    optimizer: FloatArray | float
    activations: FloatArray | float
    layer_inputs: FloatArray | float
    temporaries: FloatArray | float


class Division(Protocol):
    """A model divided among the devices of one logical mesh, at one ZeRO level.

    A layer may be divided otherwise in one stage than in another: it then has several variants.
    """

    @property
    def variants(self) -> Sequence[int]:
        """Returns the layer that each variant is of; the first L are the layers in order."""
        ...

    @property
    def of_stages(self) -> NDArray[np.intp] | None:
        """Returns for each stage i..j the variant of each of its layers n, shape (L, L, L), -1 outside.

        None: each layer has one variant.
        """
        ...

    def operators(self, phase: str) -> Sequence[Operators]:
        """Returns, by variant, the operators of a layer that one device computes; in "step" the optimizer's update."""
        ...

    def exchanges(self, variant: int, phase: str) -> Sequence[AxisCollectives]:
        """Returns a layer's collectives, which come one after the other; arrays of shape (number of unlike ones,)."""
        ...

    def combined(self, phase: str) -> Sequence[AxisCollectives]:
        """Returns the collectives that a stage of layers i..j does once for all its layers, arrays of shape (L, L)."""
        ...

    def memory(self) -> MemoryShares:
        """Returns the shares of parameters, gradients, activations and so on that one device keeps."""
        ...


class Sharding(Protocol):
    """A rule of how any logical mesh divides some layers."""

    def on(self, layers: Sequence[Layer], config: MeshConfig) -> Division:
        """Returns the layers divided on one mesh, at one ZeRO level."""
        ...

    def prepare(self, configs: Iterable[MeshConfig]) -> None:
        """Does now the work that dividing on these configs will need."""
        ...

    def with_micro_batch(self, ratio: float) -> Sharding:
        """Returns the sharding of the same model for a micro-batch that is `ratio` times as large."""
        ...
