"""The collectives of a transformer's layers: those of activations in each pass, and those of parameters and gradients.

References:
    Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, MLSys 2023 (sequence
    parallelism).
    Jacobs et al., DeepSpeed Ulysses, 2023 (context parallelism by all-to-all); Liu et al., Ring Attention, ICLR 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.problem import (
    CONTEXT,
    DATA,
    EXPERT,
    EXPERT_COPIES,
    EXPERT_REPLICATED,
    EXPERT_SHARDED,
    EXPERT_TENSOR,
    REPLICATED,
    SHARDED,
    TENSOR,
    AxisCollectives,
)
from alpa_dejavu.sharding.transformers._block import LayerWork
from alpa_dejavu.sharding.transformers._execution import ALL_TO_ALL, RING

_LOSS_BYTES = 12.0
"""What tensor-parallel devices add up of each token for the loss: the greatest logit, the sum, and the label's."""
BytesOf = Callable[[str], FloatArray]
SentCollective = tuple[str, int, float, float]
"""The kind of some collectives, their axis, the bytes of each, and how many there are; if they are of context-parallel
devices, they go on beside attention where it is computed step by step."""


def activation_exchanges(work: LayerWork, layer: int, phase: str) -> Sequence[AxisCollectives]:
    """Returns the collectives of activations of a layer's pass, one after the other."""
    if phase == "step":
        return ()
    sent = _of_layer(work, layer, phase == "backward")
    steps = max(map(work.steps, work.size.blocks_of(layer)), default=1)
    behind = {CONTEXT: 1 - 1 / steps} if work.execution.context == RING else {}
    return [
        AxisCollectives(kind, axis, np.array([size]), np.array([count]), behind.get(axis, 0.0))
        for kind, axis, size, count in sent
    ]


def _of_layer(work: LayerWork, layer: int, backward: bool) -> Iterator[SentCollective]:
    if backward and not work.goes_back(layer):
        return
    last = work.size.num_layers - 1
    if work.degrees.tensor > 1 and layer in (0, last):
        yield from _of_ends(work, layer, backward)
    for number in work.size.blocks_of(layer):
        yield from _of_block(work, number, backward)
        if work.degrees.tensor > 1 and layer == last:
            # A block that predicts has an embedding, a product whose results are gathered, and a head of its own.
            yield from _of_ends(work, 0, backward)
            yield "all_gather", TENSOR, work.width * work.tokens * work.size.hidden, 1.0
            yield from _of_ends(work, layer, backward)


def _of_block(work: LayerWork, number: int, backward: bool) -> Iterator[SentCollective]:
    """Yields the exchanges of a block.

    With sequence parallelism the operands of products are gathered among tensor-parallel devices, and their results
    reduced and scattered; going backward the other way round, and the operands are gathered once more for the gradients
    of weights that are trained. Tokens go to the devices of their experts, where they are gathered among those that
    share an expert, and back; where each device has all experts, they are gathered before they are sorted by these.
    """
    size, degrees, routes = work.size, work.degrees, work.size.has_experts(number)
    whole = work.width * work.tokens * size.hidden
    routed = work.width * work.routed * size.hidden
    if degrees.tensor > 1 and work.execution.sequence_parallel:
        halves = {"attention": _enters_attention(work)} | ({"feed_forward": whole} if size.dense_width(number) else {})
        for half, entering in halves.items():
            yield "all_gather", TENSOR, entering, 1.0
            if backward and size.keeps_operands(number + 1, half):
                yield "all_gather", TENSOR, whole, 1.0
            yield "reduce_scatter", TENSOR, entering if backward else whole, 1.0
    elif degrees.tensor > 1:
        yield "all_reduce", TENSOR, whole, 2.0
    if degrees.context > 1:
        yield from _of_context(work, backward)
    if routes and degrees.expert > 1:
        yield "all_to_all", EXPERT, routed / degrees.expert_tensor, 2.0
    if routes and degrees.expert_tensor > 1 and work.execution.sequence_parallel:
        axis = EXPERT_TENSOR if degrees.expert_tensor != degrees.tensor else TENSOR
        shared = min(routed, whole * degrees.expert_tensor / degrees.tensor) if degrees.expert == 1 else routed
        for kind in ("all_gather", "reduce_scatter"):
            yield kind, axis, shared, 1.0


def _enters_attention(work: LayerWork) -> float:
    """The bytes that tensor-parallel devices gather before attention: of latent attention only the latent vectors,
    which they make of the tokens that each has.
    """
    size = work.size
    latent = (size.query_rank or size.hidden) + size.latent_rank + size.rotary_size
    return work.width * work.tokens * (latent if size.latent_rank else size.hidden)


def _of_ends(work: LayerWork, layer: int, backward: bool) -> Iterator[SentCollective]:
    """Yields the exchanges of tensor-parallel devices in the table of embeddings and in the head."""
    cut, whole = work.execution.sequence_parallel, work.width * work.tokens * work.size.hidden
    if layer == 0:
        yield ("all_gather" if backward else "reduce_scatter") if cut else "all_reduce", TENSOR, whole, 1.0
        return
    if cut:
        yield "all_gather", TENSOR, whole, 1.0
        if backward:
            yield "reduce_scatter", TENSOR, whole, 1.0
    elif backward:
        yield "all_reduce", TENSOR, whole, 1.0
    if not backward:
        yield "all_reduce", TENSOR, _LOSS_BYTES * work.tokens, 1.0


def _of_context(work: LayerWork, backward: bool) -> Iterator[SentCollective]:
    """Yields the exchanges of devices that share a sample's tokens: going backward the same again, and where keys and
    values go around, their gradients with them.
    """
    size = work.size
    keys = work.width * work.tokens * work.keys * (size.head_size + size.rotary_size + size.value_size)
    if work.execution.context != ALL_TO_ALL:
        for kind in ("all_gather", "reduce_scatter")[: 1 + backward]:
            yield kind, CONTEXT, keys * work.degrees.context, 1.0
        return
    heads = work.width * work.tokens * size.num_heads / work.degrees.tensor
    yield "all_to_all", CONTEXT, keys + heads * (size.head_size + size.rotary_size), 1.0
    yield "all_to_all", CONTEXT, heads * size.value_size, 1.0


def parameter_exchanges(work: LayerWork, phase: str, parameters: tuple[BytesOf, BytesOf]) -> list[AxisCollectives]:
    """Returns the collectives of parameters and gradients that layers do together in a phase.

    Args:
        work: what a device has of the layers.
        phase: "forward" or "backward" of a micro-batch, or "step".
        parameters: functions of the names of figures of `ParameterBytes`, for experts' and all others: they return
            arrays of one shape, which the bytes have, too.
    """
    return [
        AxisCollectives(kind, on, num_bytes, np.ones_like(num_bytes))
        for experts, own in zip((True, False), parameters, strict=True)
        for kind, on, num_bytes in _of_parameters(work, phase, experts, own)
        if num_bytes.any()
    ]


def _of_parameters(work: LayerWork, phase: str, experts: bool, own: BytesOf) -> Iterator[tuple[str, int, FloatArray]]:
    """Yields the collectives of parameters and gradients: in groups that share what ZeRO shares, and of gradients
    between these.
    """
    degrees, ways = work.degrees, work.shares[not experts]
    apart = experts and degrees.experts_apart
    everywhere, shared, between = (
        (EXPERT_REPLICATED, EXPERT_SHARDED, EXPERT_COPIES) if apart else (DATA, SHARDED, REPLICATED)
    )
    copied = degrees.copies(apart) > 1
    axis, divided = shared if copied else everywhere, ways > 1 or not copied
    if degrees.zero == 3 and phase != "step" and divided:
        yield "all_gather", axis, own("gathered" if phase == "forward" else "regathered")
    if phase == ("backward" if degrees.zero == 3 else "step"):
        if not degrees.zero:
            yield "all_reduce", everywhere, own("reduced")
            return
        # Who updates a whole matrix has all of its gradient.
        yield "all_reduce", everywhere, own("owned")
        scattered = own("reduced") - own("owned")
        if divided:
            yield "reduce_scatter", axis, scattered
        if copied:
            yield "all_reduce", between, scattered / ways
        if degrees.zero == 2 and divided:
            yield "all_gather", axis, own("updated")
    if phase == "step" and degrees.zero and divided:
        yield "all_gather", axis, own("whole")
        yield "all_reduce", axis, own("factors")
