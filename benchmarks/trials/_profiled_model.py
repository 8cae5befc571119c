"""A training step whose layers were profiled as a whole, as the planner takes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import final

from alpa_dejavu.costs.latency import profiled_pass
from alpa_dejavu.problem import Layer, Model, Operator, Operators, Tensor

_STATES = 2.0
"""Adam's moments, over the bytes of the parameters."""


@final
@dataclasses.dataclass(frozen=True)
class ProfiledLayer:
    """A layer whose passes were profiled under the names "{name} forward" and "{name} backward".

    Attributes:
        name: its name.
        parameter_bytes: those of its parameters.
        sent_bytes: those of its activations, of a micro-batch.
        exchanged_bytes: what tensor-parallel devices all-reduce, of a micro-batch, and isn't in the profile.
        has_update: whether its update was profiled, too, as "{name} update"; else it is memory traffic.
        kept_bytes: what it keeps for its backward pass besides, of a micro-batch.
    """

    name: str
    parameter_bytes: float
    sent_bytes: float
    exchanged_bytes: tuple[float, ...] = ()
    has_update: bool = False
    kept_bytes: float = 0.0


def profiled_model(layers: Sequence[ProfiledLayer], samples: int, tied: Sequence[tuple[int, int]] = ()) -> Model:
    """The step of a micro-batch of so many samples; of each tied pair the second layer has the first's parameters."""
    made = [
        Layer(
            layer.name,
            profiled_pass(f"{layer.name} forward", samples, 1.0),
            profiled_pass(f"{layer.name} backward", samples, 1.0),
            profiled_pass(f"{layer.name} update", 1.0, 1.0) if layer.has_update else _update(layer.parameter_bytes),
            exchanged_bytes=layer.exchanged_bytes,
        )
        for layer in layers
    ]
    return Model(tuple(made), tuple(_tensors(layers, dict(tied))))


def _update(num_bytes: float) -> Operators:
    if not num_bytes:
        return Operators.of([])
    shape = ((int(num_bytes / 4),),)
    return Operators.of(
        [
            Operator(
                "elementwise", "adam", shape, shape, "float32", 2.5 * num_bytes,
                read_bytes=(2 + _STATES) * num_bytes, written_bytes=(1 + _STATES) * num_bytes,
            )
        ]
    )  # fmt: skip


def _tensors(layers: Sequence[ProfiledLayer], tied: dict[int, int]) -> Iterator[Tensor]:
    last = 2 * len(layers) - 1
    for n, layer in enumerate(layers):
        if layer.parameter_bytes:
            users = (n, tied[n]) if n in tied else (n,)
            yield Tensor(layer.parameter_bytes, "parameter", -1, users)
            yield Tensor(layer.parameter_bytes, "gradient", -1, users)
            yield Tensor(_STATES * layer.parameter_bytes, "optimizer", -1, users)
        if layer.kept_bytes:
            yield Tensor(layer.kept_bytes, "activation", n, (last - n,))
        if n + 1 < len(layers):
            yield Tensor(layer.sent_bytes, "activation", n, (n + 1,))
            yield Tensor(layer.sent_bytes, "activation", last - n - 1, (last - n,))
