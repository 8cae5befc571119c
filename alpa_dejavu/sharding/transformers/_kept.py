"""The bytes that a device keeps of a transformer's layers, part by part, as training frameworks keep them.

References:
    Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, MLSys 2023, section 4: without
    fused kernels a block keeps 34 bytes of a token's each hidden element, and 5 of each score.
    Rajbhandari et al., ZeRO, SC 2020 (what of parameters, gradients and states).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import final

from alpa_dejavu.sharding.transformers._block import LayerWork
from alpa_dejavu.sharding.transformers._execution import PLAIN

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
        entering: the hidden state that the layer takes in, of each micro-batch in flight.
        logits: of the loss while it is computed.
        working: of what lives only while a layer goes backward; with what it computes again, where it does.
        gathered: the whole parameters, and gradients, of the blocks that are at hand under ZeRO-3.
    """

    weights: float
    gradients: float
    states: float
    activations: float
    entering: float
    logits: float
    working: float
    gathered: float


def kept(work: LayerWork, layer: int, remat: str) -> KeptBytes:
    """Returns the bytes that a device keeps of a layer with `remat` "none", "selective" or "layer"."""
    execution, size, zero = work.execution, work.size, work.degrees.zero
    own, goes_back = work.parameter_bytes(layer), work.goes_back(layer)
    block = 0 < layer < size.num_layers - 1 and goes_back
    activations = dict(_activations(work, layer)) if block else {}
    whole = sum(activations.values())
    stays = {"none": whole, "selective": _selected(work, activations), "layer": 0.0}[remat] if block else 0.0
    hidden = work.width * work.hidden * goes_back
    logits = execution.logit_bytes * work.tokens * work.vocabulary if layer == size.num_layers - 1 else 0.0
    return KeptBytes(
        weights=sum(work.shared((each_kind.weights for each_kind in own), zero == 3)),
        gradients=sum(work.shared((each_kind.gradients for each_kind in own), zero == 3)),
        states=sum(work.shared((each_kind.states for each_kind in own), zero > 0)),
        activations=stays if layer < size.num_layers - 1 else hidden,
        entering=hidden if layer else 0.0,
        logits=logits,
        working=(whole - stays if block else 0.0) + _going_backward(work, layer),
        gathered=_gathered(work, layer) if zero == 3 else 0.0,
    )


def _activations(work: LayerWork, layer: int) -> Iterator[tuple[str, float]]:
    """Yields what a block keeps for its backward pass, beside what it takes in: the operands of products, of attention,
    of norms and of activation functions.
    """
    size, tokens, tensor = work.size, work.tokens, work.degrees.tensor
    hidden, heads = work.width * work.hidden, size.num_heads / tensor
    yield "attention's norm", _operand(work, layer, "attention", work.hidden)
    if size.latent_rank:
        low = size.query_rank + size.latent_rank
        yield "latent vectors", work.width * tokens * (2 * low + size.rotary_size) / work.cut
        yield "queries and keys", work.width * tokens * 2 * heads * (size.head_size + size.rotary_size)
        yield "values", work.width * tokens * heads * size.value_size
    else:
        keys = 2 * max(size.kv_heads / tensor, 1.0)
        yield "queries, keys and values", work.width * tokens * (heads + keys) * size.head_size
    mixed = tokens * heads * size.value_size
    yield "attention", work.width * mixed
    if work.execution.narrow_operands and size.computes_in.operand_bytes:
        yield "attention in fewer bits", _operand(work, layer, "attention", mixed)
    if work.execution.attention == PLAIN:
        yield "scores", _SCORE * tokens * heads * size.sequence
    else:
        yield "statistics", _STATISTICS * tokens * heads
    yield "residual", hidden
    yield "feed-forward's norm", _operand(work, layer, "feed_forward", work.hidden)
    if width := size.dense_width(layer - 1):
        yield from _fed("feed-forward", work, layer, tokens, width / tensor)
    if size.has_experts(layer - 1):
        yield "router", _STATISTICS * tokens * size.num_experts / work.cut
        yield "routed tokens", work.width * work.routed * size.hidden
        yield from _fed("experts", work, layer, work.routed, size.feed_forward / work.degrees.expert_tensor)
    if size.trained(layer) == "adapters":
        adapted = [of for of in work.block_products(layer - 1) if of.has_adapters(size)]
        yield "adapters", work.width * sum(of.tokens * size.lora * len(of.parts) for of in adapted)


def _fed(name: str, work: LayerWork, layer: int, tokens: float, width: float) -> Iterator[tuple[str, float]]:
    entering = work.width * tokens * width * (1 + work.size.gated)
    yield f"{name}, wide", entering
    yield f"{name}, activated", _operand(work, layer, "feed_forward", tokens * width)


def _operand(work: LayerWork, layer: int, target: str, elements: float) -> float:
    """Returns what is kept of the operand of products, a norm's or an activation function's result, whose weights'
    gradients take it.
    """
    if work.execution.frees_activations or not work.size.keeps_operands(layer, target):
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


def _going_backward(work: LayerWork, layer: int) -> float:
    """Returns the bytes of gradients of activations that live at a time while a layer goes backward."""
    size, hidden = work.size, work.width * work.hidden
    if not 0 < layer < size.num_layers - 1:
        return 2 * hidden
    elements = [size.dense_width(layer - 1) * work.tokens / work.degrees.tensor]
    if size.has_experts(layer - 1):
        elements.append(size.feed_forward * work.routed / work.degrees.expert_tensor)
    return work.width * max(elements) * (2 + size.gated) + 2 * hidden


def _gathered(work: LayerWork, layer: int) -> float:
    ahead = work.execution.blocks_ahead if 0 < layer < work.size.num_layers - 1 else 1.0
    shared = zip(work.parameter_bytes(layer), work.shares, strict=True)
    return sum(own.gathered * ahead + own.reduced for own, share in shared if share > 1)
