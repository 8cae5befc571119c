"""What crosses from stage to stage: for all ranges of layers, what a stage takes in forward and backward."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu._ranges import FloatArray, touched_sum
from alpa_dejavu.problem import Model

__all__ = ["Boundary"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Boundary:
    """For a stage of layers i..j, bytes and number of tensors that one micro-batch brings in, each of shape (L, L).

    Forward they come from stages before it, backward from stages after it. A tensor counts once for a stage, however
    many of the stage's layers use it.
    """

    forward_bytes: FloatArray
    forward_tensors: FloatArray
    backward_bytes: FloatArray
    backward_tensors: FloatArray

    @classmethod
    def of(cls, model: Model) -> Boundary:
        """By the tensors of a model."""
        num_layers = model.num_layers
        ahead: list[tuple[float, int, list[int]]] = []
        back: list[tuple[float, int, list[int]]] = []
        for tensor in model.tensors:
            if tensor.role != "activation":
                continue
            made = model.layer_of(tensor.producer)
            users = sorted({model.layer_of(position) for position in tensor.users})
            if tensor.producer < num_layers:
                ahead.append((tensor.num_bytes, made + 1, [u for u in users if u > made]))
            else:
                mirrored = sorted(num_layers - 1 - u for u in users if u < made)
                back.append((tensor.num_bytes, num_layers - made, mirrored))
        return cls(
            touched_sum(num_layers, ahead),
            touched_sum(num_layers, [(1.0, start, users) for _, start, users in ahead]),
            _mirror(touched_sum(num_layers, back)),
            _mirror(touched_sum(num_layers, [(1.0, start, users) for _, start, users in back])),
        )


def _mirror(ranges: FloatArray) -> FloatArray:
    """Entry (i, j) of the chain read from its end: (L-1-j, L-1-i)."""
    return ranges[::-1, ::-1].T
