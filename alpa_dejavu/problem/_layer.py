"""One layer of a model: its operators, and what they exchange."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.problem import checks
from alpa_dejavu.problem._operators import Operators


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Layer:
    """One layer of a model: its operators of the forward pass, the backward pass and the optimizer's update.

    Attributes:
        name: for people.
        forward, backward: operators of one micro-batch (backward is empty in inference, and where nothing is trained).
        update: operators of the optimizer's step, once for all micro-batches.
        forward_temporary_bytes, backward_temporary_bytes: the peak bytes of tensors that live only while the layer's
            forward or backward pass is computed.
        exchanged_bytes: the bytes that a tensor-parallel group all-reduces for this layer and one micro-batch, forward
            and backward together: one entry for each all-reduce, of the whole (unsharded) tensor.
    """

    name: str
    forward: Operators
    backward: Operators
    update: Operators
    forward_temporary_bytes: float = 0.0
    backward_temporary_bytes: float = 0.0
    exchanged_bytes: tuple[float, ...] = ()

    def operators(self, phase: str) -> Operators:
        """Returns the layer's operators of a phase: "forward", "backward" or "step" (the optimizer's update)."""
        return {"forward": self.forward, "backward": self.backward, "step": self.update}[phase]

    def __post_init__(self) -> None:
        for field in ("forward_temporary_bytes", "backward_temporary_bytes"):
            checks.not_negative(f"layer {self.name}", field, getattr(self, field))
