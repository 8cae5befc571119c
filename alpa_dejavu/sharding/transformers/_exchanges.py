"""The collectives of a transformer's layers: those of activations in each pass, and those of parameters and gradients.

References:
    Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, MLSys 2023 (sequence
    parallelism).
    Jacobs et al., DeepSpeed Ulysses, 2023 (context parallelism by all-to-all); Liu et al., Ring Attention, ICLR 2024.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.problem import (
    CONTEXT,
    DATA,
    EXPERT,
    EXPERT_REPLICATED,
    REPLICATED,
    SHARDED,
    TENSOR,
    AxisCollectives,
)
from alpa_dejavu.sharding.transformers._block import LayerWork

_LOSS_BYTES = 12.0
"""What tensor-parallel devices add up of each token for the loss: the greatest logit, the sum, and the label's."""
ArraysOfBytes = Mapping[str, FloatArray]
SentCollective = tuple[str, int, float, float]
"""The kind of some collectives, their axis, the bytes of each, and how many there are."""


def activation_exchanges(work: LayerWork, layer: int, phase: str) -> Sequence[AxisCollectives]:
    """Returns the collectives of activations of a layer's pass, one after the other."""
    if phase == "step":
        return ()
    sent = _of_layer(work, layer, phase == "backward")
    return [AxisCollectives(kind, axis, np.array([size]), np.array([count])) for kind, axis, size, count in sent]


def _of_layer(work: LayerWork, layer: int, backward: bool) -> Iterator[SentCollective]:
    degrees, whole = work.degrees, work.width * work.tokens * work.size.hidden
    if backward and not work.goes_back(layer):
        return
    if degrees.tensor > 1:
        yield from _of_tensors(work, layer, whole, backward)
    if 0 < layer < work.size.num_layers - 1:
        if degrees.context > 1:
            yield from _of_context(work)
        if degrees.expert > 1 and work.size.has_experts(layer - 1):
            yield "all_to_all", EXPERT, whole * work.size.experts_per_token, 2.0


def _of_tensors(work: LayerWork, layer: int, whole: float, backward: bool) -> Iterator[SentCollective]:
    """Yields the exchanges of tensor-parallel devices.

    With sequence parallelism a product's operand is gathered, and its result reduced and scattered; going backward the
    other way round, and the operand is gathered once more for the gradients of weights.
    """
    cut, last = work.execution.sequence_parallel, work.size.num_layers - 1
    if layer == 0:
        yield ("all_gather" if backward else "reduce_scatter") if cut else "all_reduce", TENSOR, whole, 1.0
    elif layer == last:
        if cut:
            yield "all_gather", TENSOR, whole, 1.0
            if backward:
                yield "reduce_scatter", TENSOR, whole, 1.0
        elif backward:
            yield "all_reduce", TENSOR, whole, 1.0
        if not backward:
            yield "all_reduce", TENSOR, _LOSS_BYTES * work.tokens, 1.0
    elif cut:
        again = sum(work.size.keeps_operands(layer, target) for target in ("attention", "feed_forward"))
        yield "all_gather", TENSOR, whole, 2.0 + again if backward else 2.0
        yield "reduce_scatter", TENSOR, whole, 2.0
    else:
        yield "all_reduce", TENSOR, whole, 2.0


def _of_context(work: LayerWork) -> Iterator[SentCollective]:
    """Yields the exchanges of devices that share a sample's tokens: going backward they are the same again."""
    size, tensor = work.size, work.degrees.tensor
    width = size.head_size + size.rotary_size + size.value_size
    keys = work.width * work.tokens * max(size.kv_heads / tensor, 1.0) * width
    if work.execution.context == "ring":
        yield "all_gather", CONTEXT, keys * work.degrees.context, 1.0
        return
    heads = work.width * work.tokens * size.num_heads / tensor
    yield "all_to_all", CONTEXT, keys + heads * (size.head_size + size.rotary_size), 1.0
    yield "all_to_all", CONTEXT, heads * size.value_size, 1.0


def parameter_exchanges(
    work: LayerWork, phase: str, parameters: tuple[ArraysOfBytes, ArraysOfBytes]
) -> list[AxisCollectives]:
    """Returns the collectives of parameters and gradients that layers do together in a phase.

    Args:
        work: what a device has of the layers.
        phase: "forward" or "backward" of a micro-batch, or "step".
        parameters: the figures of `ParameterBytes` by their names, those of experts and all others; arrays of one
            shape, which the bytes have, too.
    """
    of_experts = EXPERT_REPLICATED if work.degrees.expert > 1 else DATA
    return [
        AxisCollectives(kind, on, num_bytes, np.ones_like(num_bytes))
        for axis, own in zip((of_experts, DATA), parameters, strict=True)
        for kind, on, num_bytes in _of_parameters(work, phase, axis, own)
        if num_bytes.any()
    ]


def _of_parameters(
    work: LayerWork, phase: str, axis: int, own: ArraysOfBytes
) -> Iterator[tuple[str, int, FloatArray]]:
    degrees = work.degrees
    shared = SHARDED if degrees.zero == 3 and axis == DATA and degrees.replicas > 1 else axis
    if degrees.zero == 3:
        if phase != "step":
            yield "all_gather", shared, own["gathered" if phase == "forward" else "regathered"]
        if phase == "backward":
            yield "reduce_scatter", shared, own["reduced"]
            if shared == SHARDED:
                yield "all_reduce", REPLICATED, own["reduced"] / degrees.sharded
    elif phase == "step" and degrees.zero:
        # Who updates a whole matrix has all of its gradient.
        yield "reduce_scatter", axis, own["reduced"] - own["owned"]
        yield "all_reduce", axis, own["owned"]
        yield "all_gather", axis, own["updated"]
    elif phase == "step":
        yield "all_reduce", axis, own["reduced"]
    if phase == "step" and degrees.zero:
        yield "all_gather", shared, own["whole"]
        yield "all_reduce", shared, own["factors"]
