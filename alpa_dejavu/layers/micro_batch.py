"""A model at another micro-batch than the one that it was traced with."""

from __future__ import annotations

import dataclasses

from alpa_dejavu.problem import Model, Operators, RecomputingPasses

__all__ = ["with_micro_batch"]


def with_micro_batch(model: Model, ratio: float) -> Model:
    """Returns a model with a micro-batch `ratio` times as large: what has a batch dimension grows by that ratio.

    Raises:
        ValueError: the ratio isn't positive.
    """
    if not ratio > 0:
        raise ValueError(f"the micro-batch can't become {ratio} times as large; give a positive ratio")
    grown: dict[int, Operators] = {}

    def scaled(operators: Operators) -> Operators:
        if id(operators) not in grown:
            grown[id(operators)] = operators.split(1 / ratio)
        return grown[id(operators)]

    def grown_passes(passes: RecomputingPasses) -> RecomputingPasses:
        parts = scaled(passes.forward), scaled(passes.again), scaled(passes.backward)
        return RecomputingPasses(*parts, passes.temporary_bytes * ratio)

    layers = tuple(
        dataclasses.replace(
            layer,
            forward=scaled(layer.forward),
            backward=scaled(layer.backward),
            forward_temporary_bytes=layer.forward_temporary_bytes * ratio,
            backward_temporary_bytes=layer.backward_temporary_bytes * ratio,
            exchanged_bytes=tuple(num_bytes * ratio for num_bytes in layer.exchanged_bytes),
            recomputing=layer.recomputing and grown_passes(layer.recomputing),
        )
        for layer in model.layers
    )
    tensors = tuple(
        dataclasses.replace(tensor, num_bytes=tensor.num_bytes * ratio)
        if tensor.role in ("activation", "input")
        else tensor
        for tensor in model.tensors
    )
    sharding = None if model.sharding is None else model.sharding.with_micro_batch(ratio)
    return dataclasses.replace(model, layers=layers, tensors=tensors, sharding=sharding)
