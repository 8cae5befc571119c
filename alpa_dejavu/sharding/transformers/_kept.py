"""The bytes that a device keeps of a transformer's layers, part by part, as training frameworks keep them.

References:
    Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, MLSys 2023, section 4: without
    fused kernels a block keeps 34 bytes of a token's each hidden element, and 5 of each score.
    Rajbhandari et al., ZeRO, SC 2020 (what of parameters, gradients and states).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import final

from alpa_dejavu.sharding.transformers._block import LayerWork
from alpa_dejavu.sharding.transformers._execution import ALL_TO_ALL, PLAIN, RING

_STATISTICS = 4.0
"""The bytes of a row's statistics that fused attention keeps."""
_SCORE = 5.0
"""What plain attention keeps of a score: its probability, with dropout and without, and which ones that leaves out."""
_EVERY_SECOND = 0.5
"""The share of products whose results are kept where every second one is ("selective", by torchtitan)."""


@final
@dataclasses.dataclass(frozen=True)
class KeptBytes:
    """The bytes that a device keeps of one layer.

    Attributes:
        weights, gradients, states: of its parameters, all the time.
        activations: of each micro-batch in flight, but for what the layer takes in.
        entering: the hidden state that the layer takes in, of each micro-batch in flight; 0 where it isn't kept, as
            nothing up to the layer is trained.
        sent: the same hidden state, kept or not.
        logits: of the loss while it is computed.
        working: of what lives only while a layer goes backward; with what it computes again, where it does.
        gathered: the whole parameters, and gradients, of the blocks that are at hand under ZeRO-3.
    """

    weights: float
    gradients: float
    states: float
    activations: float
    entering: float
    sent: float
    logits: float
    working: float
    gathered: float


def kept(work: LayerWork, layer: int, remat: str) -> KeptBytes:
    """Returns the bytes that a device keeps of a layer with `remat` "none", "selective" or "layer"."""
    own, zero = work.parameter_bytes(layer), work.degrees.zero
    activations, entering, sent, logits, working = _passing(work.of_replica, layer, remat)
    return KeptBytes(
        weights=sum(work.shared((kind.weights for kind in own), zero == 3)),
        gradients=sum(work.shared((kind.gradients for kind in own), zero == 3)),
        states=sum(work.shared((kind.states for kind in own), zero > 0)),
        activations=activations,
        entering=entering,
        sent=sent,
        logits=logits,
        working=working,
        gathered=_gathered(work, layer) if zero == 3 else 0.0,
    )


@functools.lru_cache(maxsize=4096)
def _passing(work: LayerWork, layer: int, remat: str) -> tuple[float, float, float, float, float]:
    """Returns what a replica keeps of a layer for its passes: `KeptBytes.activations` to `working`."""
    execution, size, goes_back = work.execution, work.size, work.goes_back(layer)
    blocks, is_last = size.blocks_of(layer) if goes_back else range(0), layer == size.num_layers - 1
    activations = [dict(_activations(work, number)) for number in blocks]
    whole = [sum(block.values()) for block in activations]
    stays = [
        {"none": total, "selective": _selected(work, block), "layer": 0.0}[remat]
        for total, block in zip(whole, activations, strict=True)
    ]
    hidden = work.width * work.hidden
    # A block that predicts has an embedding, the two operands of its product, their result, its own, and that normed.
    ends = hidden * (1 + 6 * size.predicted) if is_last else 0.0  # the head has a backward pass in any case
    logits = execution.logit_bytes * work.tokens * work.vocabulary if is_last else 0.0
    again = max((total - rest for total, rest in zip(whole, stays, strict=True)), default=0.0)
    entering = hidden if layer else 0.0
    return sum(stays) + ends, entering * goes_back, entering, logits, again + _going_backward(work, blocks)


def _activations(work: LayerWork, number: int) -> Iterator[tuple[str, float]]:
    """Yields what a block of a number keeps for its backward pass, beside what it takes in: the operands of products,
    of attention, of norms and of activation functions.
    """
    size, tokens, tensor = work.size, work.tokens, work.degrees.tensor
    hidden, heads, frees = work.width * work.hidden, size.num_heads / tensor, work.execution.frees_activations
    norms = {
        half: _operand(work, number, half, work.hidden) * size.normed("ahead") + hidden * size.normed("behind")
        for half in ("attention", "feed_forward")
    }
    yield "attention's norms", norms["attention"]
    if size.latent_rank:
        low = size.query_rank + size.latent_rank
        yield "latent vectors", work.width * tokens * (2 * low + size.rotary_size) / work.cut
        yield "queries and keys", work.width * tokens * 2 * heads * (size.head_size + size.rotary_size)
        yield "values", work.width * tokens * heads * size.value_size
    else:
        yield "queries, keys and values", work.width * tokens * (heads + 2 * work.keys) * size.head_size
        if size.qk_norm and not frees:
            yield "queries and keys ahead of norms", work.width * tokens * (heads + work.keys) * size.head_size
    mixed = tokens * heads * size.value_size
    yield "attention", work.width * mixed
    if work.execution.narrow_operands and size.computes_in.operand_bytes:
        yield "attention in fewer bits", _operand(work, number, "attention", mixed)
    if work.execution.attention == PLAIN:
        yield "scores", _SCORE * tokens * heads * size.sequence
    else:
        yield "statistics", _STATISTICS * tokens * heads
    yield "residual", hidden
    yield "feed-forward's norms", norms["feed_forward"]
    if width := size.dense_width(number):
        yield from _fed("feed-forward", work, number, tokens, width / tensor)
    if size.has_experts(number):
        yield "router", _STATISTICS * tokens * size.num_experts / work.cut
        yield "routed tokens", work.width * work.routed * size.hidden
        yield from _fed("experts", work, number, work.routed, size.feed_forward / work.degrees.expert_tensor)
    if size.trained(number + 1) == "adapters":
        adapted = [of for of in work.block_products(number) if of.has_adapters(size)]
        yield "adapters", work.width * sum(of.tokens * size.lora * len(of.parts) for of in adapted)


def _fed(name: str, work: LayerWork, number: int, tokens: float, width: float) -> Iterator[tuple[str, float]]:
    entering = work.width * tokens * width * (1 + work.size.gated)
    yield f"{name}, wide", entering
    yield f"{name}, activated", _operand(work, number, "feed_forward", tokens * width)


def _operand(work: LayerWork, number: int, target: str, elements: float) -> float:
    """Returns what is kept of the operand of products, a norm's or an activation function's result, whose weights'
    gradients take it.
    """
    if work.execution.frees_activations or not work.size.keeps_operands(number + 1, target):
        return 0.0
    narrow = work.size.computes_in.operand_bytes if work.execution.narrow_operands else 0.0
    return (narrow or work.width) * elements


def _selected(work: LayerWork, activations: dict[str, float]) -> float:
    """Returns what stays of a block's activations where it computes some of them again."""
    whole = sum(activations.values())
    if work.execution.selective == "attention":
        return whole - activations.get("scores", 0.0)
    always = activations["attention"] + activations.get("statistics", 0.0)
    return always + _EVERY_SECOND * (whole - always)


def _going_backward(work: LayerWork, blocks: range) -> float:
    """Returns the bytes of gradients of activations that live at a time while a layer of these blocks goes backward, or
    of what attention takes while devices share tokens, if that is more.
    """
    size, hidden = work.size, work.width * work.hidden
    elements = [size.dense_width(number) * work.tokens / work.degrees.tensor for number in blocks]
    if any(map(size.has_experts, blocks)):
        elements.append(size.feed_forward * work.routed / work.degrees.expert_tensor)
    going = work.width * max(elements, default=0.0) * (2 + size.gated) + 2 * hidden
    return max(going, _exchanging(work) if blocks else 0.0)


def _exchanging(work: LayerWork) -> float:
    """Returns the bytes that attention takes while devices share tokens: by all-to-all another copy of what is sent,
    gathered all keys and values with their gradients, and in a ring those of each step with the results.
    """
    size, context = work.size, work.degrees.context
    if context == 1:
        return 0.0
    keys = work.keys * (size.head_size + size.rotary_size + size.value_size)
    heads = size.num_heads / work.degrees.tensor
    elements = {
        ALL_TO_ALL: keys + heads * (size.head_size + size.rotary_size),
        RING: context * (keys + heads * size.value_size),
    }.get(work.execution.context, 2 * context * keys)
    return work.width * work.tokens * elements


def _gathered(work: LayerWork, layer: int) -> float:
    ahead = work.execution.blocks_ahead if 0 < layer < work.size.num_layers - 1 else 1.0
    shared = zip(work.parameter_bytes(layer), work.shares, strict=True)
    return sum(own.gathered * ahead + own.reduced for own, share in shared if share > 1)
