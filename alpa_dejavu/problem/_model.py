"""A training step as the planner sees it: layers in a row, and the tensors that live in and between them."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.problem import checks
from alpa_dejavu.problem._division import Layer, Sharding

ROLES = ("parameter", "gradient", "optimizer", "input", "activation")


@final
@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor of a training step, and the layers that make and use it, by their positions in the order of
    computation.

    With L layers, position p < L is the forward computation of layer p, and position p >= L the backward one of layer
    2L-1-p: the order in which one micro-batch goes through.

    Attributes:
        num_bytes: the bytes of the whole (unsharded) tensor, for one micro-batch if it has a batch dimension.
        role: one of `ROLES`; "activation" is what a layer makes, the others come from outside.
        producer: the position of the layer that makes it, -1 if it comes from outside.
        users: the positions that read it, ascending; for "gradient" and "optimizer" the layers (as forward positions)
            whose stages keep it.
    """

    num_bytes: float
    role: str
    producer: int
    users: tuple[int, ...]

    def __post_init__(self) -> None:
        checks.one_of("tensor", "role", self.role, ROLES)
        checks.not_negative("tensor", "num_bytes", self.num_bytes)
        if list(self.users) != sorted(set(self.users)):
            raise ValueError(f"tensor: users is {self.users}, but must be ascending positions, each once")


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A model as the planner sees it: the layers of a training step, and all tensors that outlive one layer.

    `sharding` says how the devices of a logical mesh divide the layers; without one all work is divided evenly.

    Raises ValueError without layers, or where a tensor names a position that doesn't exist.
    """

    layers: tuple[Layer, ...]
    tensors: tuple[Tensor, ...]
    training: bool = True
    sharding: Sharding | None = None

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError(
                "the model has zero layers: nothing can be planned; give AutoLayerOption a layer_num of at least 1, "
                "or mark layers with alpa.mark_pipeline_boundary()"
            )
        last = 2 * len(self.layers) - 1
        for tensor in self.tensors:
            if tensor.producer > last or (tensor.users and not 0 <= tensor.users[0] <= tensor.users[-1] <= last):
                raise ValueError(f"{tensor} names a position outside of 0..{last} ({len(self.layers)} layers)")

    @property
    def num_layers(self) -> int:
        """Returns L, the number of the model's layers."""
        return len(self.layers)

    def layer_of(self, position: int) -> int:
        """Returns the number of the layer at a position of the chain, forward (0..L-1) then backward (L..2L-1)."""
        return position if position < self.num_layers else 2 * self.num_layers - 1 - position

    @property
    def parameter_bytes(self) -> float:
        """Returns the bytes of all parameters of the model together."""
        return sum(t.num_bytes for t in self.tensors if t.role == "parameter")

    @property
    def flop(self) -> float:
        """Returns the floating-point operations of one micro-batch through all layers, forward and backward."""
        return sum(layer.forward.total_flop + layer.backward.total_flop for layer in self.layers)

    @property
    def product_flop(self) -> dict[str, float]:
        """Returns the FLOP of one micro-batch's matrix products and convolutions, forward and backward, by dtype; what
        the model itself computes again doesn't count.
        """
        totals: dict[str, float] = {}
        for operators in (part for layer in self.layers for part in (layer.forward, layer.backward)):
            flop = operators.flop * operators.count * (operators.is_product & ~operators.repeated)
            for dtype in sorted(set(operators.dtype[operators.is_product].tolist())):
                totals[dtype] = totals.get(dtype, 0.0) + float(flop[operators.dtype == dtype].sum())
        return totals
