"""The operators of a transformer's layers on one device, as training frameworks run them: products, fused attention,
and kernels that read and write each tensor once.

A layer is the table of embeddings, a block, or the head with the loss.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import final

from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import FusedAttention, Operator, Operators
from alpa_dejavu.sharding.transformers._execution import ALL_TO_ALL, ALONE, PLAIN, DivisionDegrees, Execution
from alpa_dejavu.sharding.transformers._records import (
    CAPPED,
    PLAIN_ATTENTION,
    grouped,
    plain_attention,
    product,
    stream,
)

_SINGLE = 4.0
_BACKWARD = 2.5
"""The operations of fused attention's backward pass over those of its forward pass: five products for two."""
_VOCABULARY_UNIT = 128
_UPDATE_BYTES = 16.0
"""What an update reads and writes of a parameter's state in single precision: two moments."""
_MERGED = 0.75
"""The share of a device's tokens that a step of attention with the keys of another one is of: in half of the steps it
leaves out half of the queries, in the others half of the keys."""
_ROUTING_BYTES = 16.0
"""What choosing experts reads and writes of a token's score for each expert, forward; backward half of it."""


def padded_vocabulary(size: Transformer, tensor: int) -> int:
    """Returns the rows of the table of embeddings, which frameworks raise to a multiple of 128 for each device."""
    unit = _VOCABULARY_UNIT * tensor
    return -(-size.vocabulary // unit) * unit


@final
@dataclasses.dataclass(frozen=True)
class LayerWork:
    """The work of a transformer's layers on one device for one micro-batch.

    Attributes:
        size: the transformer.
        execution: how its framework runs it.
        degrees: among how many devices it is divided in each way.
        samples: the samples of the micro-batch, over all data-parallel replicas together.
    """

    size: Transformer
    execution: Execution
    degrees: DivisionDegrees
    samples: float

    @property
    def tokens(self) -> float:
        """Returns how many tokens of a micro-batch a device has."""
        return self.samples * self.size.sequence / self.degrees.data

    @property
    def cut(self) -> int:
        """Returns among how many devices tokens are divided where sequence parallelism divides them."""
        return self.degrees.tensor if self.execution.sequence_parallel else 1

    def steps(self, number: int) -> int:
        """Returns in how many steps a device computes attention of a block, with the keys of one device after the
        other; with a window it needs but few of them.
        """
        whole = self.execution.context == ALL_TO_ALL or self.execution.attention == PLAIN
        return 1 if whole or self.size.window_of(number) < self.size.sequence else self.degrees.context

    @property
    def keys(self) -> float:
        """Returns the heads of keys that a device has: one at least, by all-to-all one for each that shares tokens."""
        whole = self.degrees.context if self.execution.context == ALL_TO_ALL else 1
        return max(self.size.kv_heads / self.degrees.tensor, whole)

    @property
    def routed(self) -> float:
        """Returns how many tokens, each once for each of its experts, the experts of the busiest device have of a
        micro-batch; with a capacity all have as many.
        """
        busiest = self.size.capacity or min(self.size.imbalance, self.degrees.expert)
        shared = self.degrees.expert_tensor / self.degrees.tensor
        return self.tokens * self.size.experts_per_token * shared * busiest

    @property
    def vocabulary(self) -> float:
        """Returns the rows of the vocabulary that a device has."""
        return padded_vocabulary(self.size, self.degrees.tensor) / self.degrees.tensor

    @property
    def width(self) -> float:
        """Returns the bytes of an activation."""
        return 4.0 if self.size.precision == "float32" else 2.0

    @functools.cached_property
    def hidden(self) -> float:
        """Returns the elements of the hidden state between products, as a device has it there."""
        return self.tokens * self.size.hidden / self.cut

    def operators(self, layer: int, phase: str) -> Operators:
        """Returns the operators of a layer in a phase; the layers are embeddings, blocks, and the head.

        Args:
            layer: its number, from 0.
            phase: "forward", "backward" or "step", which is the optimizer's update.
        """
        return Operators.of(list(self._records(layer, phase)))

    def recomputed(self, layer: int, remat: str) -> Operators:
        """Returns the operators of a layer's forward pass that its backward pass runs again; only blocks run some."""
        if remat == "none":
            return Operators.of([])
        records = [record for number in self.size.blocks_of(layer) for record in self._block(number, False)]
        if remat == "layer":
            return Operators.of(records)
        if self.execution.selective == "attention":
            return Operators.of([record for record in records if record.primitive in PLAIN_ATTENTION])
        products = [record for record in records if record.kind in ("dot", "grouped")]
        streams = [record for record in records if record.kind == "elementwise"]
        return Operators.of([*streams, *products[1::2]])

    def _records(self, layer: int, phase: str) -> Iterator[Operator]:
        if phase == "step":
            yield from self._update(layer)
        elif layer == 0:
            yield from self._embedding(phase == "backward")
        else:
            backward, is_last = phase == "backward", layer == self.size.num_layers - 1
            parts = [self._head(backward)] * is_last
            for number in self.size.blocks_of(layer):
                parts += [self._predicting(backward)] * is_last + [self._block(number, backward)]
                parts += [self._head(backward)] * is_last
            for part in reversed(parts) if backward else parts:
                yield from part

    # Ends

    def _embedding(self, backward: bool) -> Iterator[Operator]:
        hidden = self.width * self.tokens * self.size.hidden
        if not backward:
            yield stream("gather", hidden, hidden)
            return
        # The gradient of the table is made anew, and added to what earlier micro-batches left.
        table = self.vocabulary * self.size.hidden
        adds = self.execution.gradient_bytes if self.execution.adds_in_place else 0.0
        yield stream("scatter", hidden + (self.width + adds) * table, (self.width + adds) * table)

    def _head(self, backward: bool) -> Iterator[Operator]:
        tokens, hidden, logits = self.tokens, self.size.hidden, self.tokens * self.vocabulary
        traffic = self.execution.logit_traffic_bytes * logits / 2
        capped = self.width * logits * bool(self.size.logit_cap)
        if not backward:
            yield from self._norm(False)
            yield product(tokens, self.vocabulary, hidden, _usual(self.size))
            yield from [stream("cap", capped, capped)] * bool(capped)
            yield stream("loss", traffic / 2, traffic / 2)
            return
        yield stream("loss", traffic / 2, traffic / 2)
        yield from [stream("cap", 2 * capped, capped)] * bool(capped)
        yield from self._gradients(tokens, self.vocabulary, hidden, _usual(self.size))
        yield from self._norm(True)

    def _predicting(self, backward: bool) -> Iterator[Operator]:
        """Yields what stands ahead of a block that predicts a further token: that token's embedding and the hidden
        state are normalised, and multiplied together.
        """
        hidden = self.size.hidden
        parts: list[Iterable[Operator]] = [
            self._embedding(backward), self._norm(backward), self._norm(backward),
            self._products([(self.tokens, hidden / self.degrees.tensor, 2 * hidden)], backward),
        ]  # fmt: skip
        for part in reversed(parts) if backward else parts:
            yield from part

    # Blocks

    def _block(self, number: int, backward: bool) -> Iterator[Operator]:
        parts = [self._attention_half(number, backward), self._feed_forward_half(number, backward)]
        for part in reversed(parts) if backward else parts:
            yield from part

    def _attention_half(self, number: int, backward: bool) -> Iterator[Operator]:
        """Yields a norm, the products before attention, attention, the product behind it, and the residual."""
        ahead = [*self._norm_at("ahead", backward), *self._products(self._attention_products[:-1], backward)]
        mixed = [*self._rotation(backward), *self._attention(number, backward)]
        behind = [
            *self._products(self._attention_products[-1:], backward), *self._norm_at("behind", backward),
            *self._residual(backward),
        ]  # fmt: skip
        for part in (behind, mixed, ahead) if backward else (ahead, mixed, behind):
            yield from part

    def _feed_forward_half(self, number: int, backward: bool) -> Iterator[Operator]:
        size, tensor = self.size, self.degrees.tensor
        parts = [list(self._norm_at("ahead", backward))]
        if size.has_experts(number):
            parts.append(list(self._experts(backward)))
        if width := size.dense_width(number):
            parts.append(list(self._feed_forward(width / tensor, backward)))
        parts += [list(self._norm_at("behind", backward)), list(self._residual(backward))]
        for part in reversed(parts) if backward else parts:
            yield from part

    def _feed_forward(self, width: float, backward: bool) -> Iterator[Operator]:
        tokens, hidden, enters = self.tokens, self.size.hidden, 1 + self.size.gated
        parts = [
            self._products([(tokens, enters * width, hidden)], backward),
            self._activation(tokens * width, backward),
            self._products([(tokens, hidden, width)], backward),
        ]
        for part in reversed(parts) if backward else parts:
            yield from part

    def _experts(self, backward: bool) -> Iterator[Operator]:
        """Yields the choice of experts, their grouped products, and the moves of tokens to them and back: they are
        sorted by experts, and once more where they come from several devices for several experts.
        """
        size, tokens, local = self.size, self.tokens / self.cut, self.size.num_experts / self.degrees.expert
        routed, width = self.routed, size.feed_forward / self.degrees.expert_tensor
        scores = _ROUTING_BYTES * tokens * size.num_experts / (2 if backward else 1)
        moved = self.width * (tokens + routed) * size.hidden
        enters = 1 + size.gated
        choice = [
            *self._products([(tokens, size.num_experts, size.hidden)], backward),
            stream("route", scores / 2, scores / 2),
        ]
        fed = [
            self._grouped(routed, enters * width, size.hidden, local, backward),
            self._activation(routed * width, backward),
            self._grouped(routed, size.hidden, width, local, backward),
        ]
        inner = [record for part in (reversed(fed) if backward else fed) for record in part]
        if self.degrees.expert > 1 and local > 1:
            sort = stream("sort", self.width * routed * size.hidden, self.width * routed * size.hidden)
            inner = [sort, *inner, sort]
        around = [stream("permute", moved / 2, moved / 2), *inner, stream("unpermute", moved / 2, moved / 2)]
        yield from (*around, *reversed(choice)) if backward else (*choice, *around)

    def _grouped(
        self, tokens: float, columns: float, inner: float, experts: float, backward: bool
    ) -> Iterator[Operator]:
        dtype = self.size.precision
        if not backward:
            yield from self._cast(tokens * inner)
            yield grouped(tokens, columns, inner, experts, dtype)
            return
        yield from self._cast(tokens * columns)
        yield grouped(tokens, inner, columns, experts, dtype)
        yield dataclasses.replace(grouped(tokens, columns, inner, experts, dtype), by_weight=True)
        yield from self._added(columns * inner * experts)

    @functools.cached_property
    def _attention_products(self) -> list[tuple[float, float, float]]:
        """The rows, columns and contracted elements of the products of attention, the last one that behind it."""
        size, tokens, tensor = self.size, self.tokens, self.degrees.tensor
        heads, behind = size.num_heads / tensor, (tokens, size.hidden, size.num_heads * size.value_size / tensor)
        if not size.latent_rank:
            keys = max(size.kv_heads / tensor, 1.0)
            return [(tokens, (heads + 2 * keys) * size.head_size, size.hidden), behind]
        queries = heads * (size.head_size + size.rotary_size)
        of_queries = [(tokens, queries, size.hidden)]
        if size.query_rank:
            of_queries = [(tokens / self.cut, size.query_rank, size.hidden), (tokens, queries, size.query_rank)]
        latent = [
            (tokens / self.cut, size.latent_rank + size.rotary_size, size.hidden),
            (tokens, heads * (size.head_size + size.value_size), size.latent_rank),
        ]
        return [*of_queries, *latent, behind]

    def _attention(self, number: int, backward: bool) -> Iterator[Operator]:
        """Yields attention over a device's samples. Devices that share tokens have some of its heads each, or a part of
        the tokens: then there is a kernel for each device's keys, which has as much to do as one with its own, since of
        the others half is masked, and their results are merged.
        """
        size, degrees, steps = self.size, self.degrees, self.steps(number)
        samples, tokens = self.samples / (degrees.data / degrees.context), size.sequence / steps
        shared = degrees.tensor * degrees.context / steps
        heads, keys = max(size.num_heads / shared, 1e-9), max(size.kv_heads / shared, 1e-9)
        head = (size.head_size + size.rotary_size + size.value_size) / 2
        if self.execution.attention == PLAIN:
            yield from plain_attention(samples * heads, size.sequence, head, _usual(self.size), backward)
            if size.attention_cap:
                scores = self.width * samples * heads * size.sequence**2
                yield stream(CAPPED, scores * (1 + backward), scores)
            return
        whole = heads if heads >= 1 else 1.0
        samples, heads, keys = samples * heads / whole, whole, max(min(keys, whole), 1.0)
        window = size.window_of(number)
        kernel = FusedAttention(
            self.execution.attention, causal=True, backward=backward, capped=size.attention_cap > 0,
            window=window if window < size.sequence else 0,
        )  # fmt: skip
        flop = 4 * samples * heads * size.pairs(number) / steps**2 * head * (_BACKWARD if backward else 1)
        moved = self.width * samples * tokens * head * (2 * heads + 2 * keys)
        shapes = tuple((max(round(samples), 1), round(tokens), round(count), round(head)) for count in (heads, keys))
        yield Operator(
            "attention", "attention", shapes, (shapes[0],), _usual(size), flop,
            read_bytes=moved * (1.5 if backward else 0.75), written_bytes=moved * (0.75 if backward else 0.25),
            kernel=kernel.text, count=steps,
        )  # fmt: skip
        if steps > 1:
            # Sums in single precision of results; going backward, of gradients of queries, keys and values.
            merged = self.width * samples * tokens * head * _MERGED * (heads + 2 * keys if backward else heads)
            sums = (1 if backward else _SINGLE / self.width) * merged
            yield dataclasses.replace(stream("merge", merged + sums, sums), count=steps - 1)

    def _rotation(self, backward: bool) -> Iterator[Operator]:
        """Yields the norms of queries and keys, and their rotation by positions, which compilers put in one kernel."""
        size, fuses = self.size, self.execution.frees_activations
        heads = self.width * self.tokens * (size.num_heads + size.kv_heads) / self.degrees.tensor
        if size.qk_norm:
            yield stream("norm of queries and keys", heads * size.head_size * (1 + backward), heads * size.head_size)
        if size.rotary and not (size.qk_norm and fuses):
            moved = heads * (size.rotary_size if size.latent_rank else size.rotated or size.head_size)
            yield stream("rotate", moved, moved)

    def _norm_at(self, where: str, backward: bool) -> Iterator[Operator]:
        if self.size.normed(where):
            yield from self._norm(backward)

    def _norm(self, backward: bool) -> Iterator[Operator]:
        hidden = self.width * self.hidden
        yield stream("norm", hidden * (2 if backward else 1), hidden)

    def _residual(self, backward: bool) -> Iterator[Operator]:
        hidden = self.width * self.hidden
        yield stream("residual", 2 * hidden, hidden)
        if backward and self.size.biased("out"):
            yield stream("bias gradient", hidden, 1.0)

    def _activation(self, elements: float, backward: bool) -> Iterator[Operator]:
        entering, leaving = self.width * elements * (1 + self.size.gated), self.width * elements
        yield (
            stream("activation", entering + leaving, entering) if backward else stream("activation", entering, leaving)
        )

    # Products, with the casts that their precision takes

    def _products(self, sizes: Sequence[tuple[float, float, float]], backward: bool) -> Iterator[Operator]:
        for rows, columns, inner in reversed(sizes) if backward else sizes:
            if backward:
                yield from self._cast(rows * columns)
                yield from self._gradients(rows, columns, inner, self.size.precision)
            else:
                yield from self._cast(rows * inner)
                yield product(rows, columns, inner, self.size.precision)

    def _gradients(self, rows: float, columns: float, inner: float, dtype: str) -> Iterator[Operator]:
        """Yields the products of a product's backward pass: the gradient of its rows, and that of its weights."""
        yield product(rows, inner, columns, dtype)
        yield dataclasses.replace(product(columns, inner, rows, dtype), by_weight=True)
        yield from self._added(columns * inner)

    def _cast(self, elements: float) -> Iterator[Operator]:
        """Yields the cast to 8 bits of an operand: it is read, and written as it is and transposed."""
        if self.size.precision == "float8":
            yield stream("cast", self.width * elements, self.width * elements)

    def _added(self, elements: float) -> Iterator[Operator]:
        """Yields the sum of a weight's gradient and what earlier micro-batches left, where it is kept in memory."""
        if self.execution.adds_in_place:
            moved = self.execution.gradient_bytes * elements
            yield dataclasses.replace(stream("add", moved, moved - self.width * elements), by_weight=True)

    def _update(self, layer: int) -> Iterator[Operator]:
        """Yields the optimizer's update of the part of a layer's parameters that a device updates, and what it does
        with all gradients that it keeps: their norm, and setting them to zero.
        """
        execution, degrees = self.execution, self.degrees
        whole = self.own_parameters(layer)
        divided = [count / share for count, share in zip(whole, self.shares, strict=True)]
        kept, updated = divided if degrees.zero == 3 else whole, sum(divided if degrees.zero else whole)
        state = _UPDATE_BYTES + 2 * _SINGLE + execution.gradient_bytes + execution.weight_bytes
        yield stream("norm of gradients", execution.gradient_bytes * sum(kept), 1.0)
        yield stream("update", state * updated / 2, state * updated / 2)
        yield stream("zero", 0.0, execution.gradient_bytes * sum(kept))

    @property
    def shares(self) -> tuple[int, int]:
        """Returns among how many devices ZeRO shares what it shares: of experts' parameters, and of all others."""
        return self.degrees.expert_sharded if self.degrees.experts_apart else self.degrees.sharded, self.degrees.sharded

    def own_parameters(self, layer: int) -> tuple[float, float]:
        """Returns how many parameters of a layer a device computes with: those of its experts, and all others."""
        size, tensor = self.size, self.degrees.tensor
        if layer == 0:
            return 0.0, (self.vocabulary * tensor + size.position_rows) * size.hidden / tensor
        ends = 0.0
        if layer == size.num_layers - 1:
            ends = (0.0 if size.tied else self.vocabulary * size.hidden) + size.norm_parameters
        experts = sum(size.block_parameters(number, experts=True) for number in size.blocks_of(layer))
        others = sum(map(self._other_parameters, size.blocks_of(layer)))
        return experts / self.degrees.expert_tensor / self.degrees.expert, ends + others

    def _other_parameters(self, number: int) -> float:
        """The parameters of a block that a device has, but for those of its experts."""
        whole = dataclasses.replace(self, degrees=ALONE)._divided_parameters(number)
        return self._divided_parameters(number) + self.size.block_parameters(number, experts=False) - whole

    def _divided_parameters(self, number: int) -> float:
        """The parameters of a block's products but for its experts' and the choice of these: norms and others are whole
        on each of the tensor-parallel devices, and so are keys of which there are fewer than devices.
        """
        size, tensor = self.size, self.degrees.tensor
        fed = (2 + size.gated) * size.hidden * size.dense_width(number) / tensor
        joined = 2 * size.hidden**2 / tensor if number in size.predicting else 0.0
        return fed + joined + sum(columns * inner for _, columns, inner in self._attention_products)


def _usual(size: Transformer) -> str:
    """The dtype of all that isn't in 8 bits."""
    return "bfloat16" if size.precision == "float8" else size.precision
