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
from alpa_dejavu.sharding.transformers._parameters import (
    MATRIX,
    TABLE,
    VECTOR,
    BlockProduct,
    ParameterBytes,
    ParameterGroup,
)
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
        return 4.0 if _usual(self.size) == "float32" else 2.0

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

    @functools.cached_property
    def of_replica(self) -> LayerWork:
        """Returns the work of one replica's samples: passes are the same, whatever replicas share once a step."""
        degrees = self.degrees
        alone = dataclasses.replace(degrees, data=degrees.context, sharded=1, zero=0, expert_sharded=1)
        return dataclasses.replace(self, degrees=alone, samples=self.samples / (degrees.data / degrees.context))

    def recomputed(self, layer: int, remat: str) -> Operators:
        """Returns the operators of a layer's forward pass that its backward pass runs again; only blocks run some."""
        if remat == "none" or not self.goes_back(layer):
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
        elif phase == "backward" and not self.goes_back(layer):
            return
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

    def goes_back(self, layer: int) -> bool:
        """Returns whether a layer has a backward pass: it or one before it is trained."""
        return layer >= self.size.first_trained

    # Ends

    def _embedding(self, backward: bool) -> Iterator[Operator]:
        hidden = self.width * self.tokens * self.size.hidden
        if not backward:
            yield stream("gather", hidden, hidden)
            return
        if self.size.trained(0) != "all":
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
        yield product(tokens, hidden, self.vocabulary, _usual(self.size))
        if self.size.trained(0 if self.size.tied else self.size.num_layers - 1) == "all":
            yield from self._weight_gradient(tokens, self.vocabulary, hidden, _usual(self.size))
        yield from self._norm(True)

    def _predicting(self, backward: bool) -> Iterator[Operator]:
        """Yields what stands ahead of a block that predicts a further token: that token's embedding and the hidden
        state are normalised, and multiplied together.
        """
        trained = self.size.trained(self.size.num_layers - 1)
        parts: list[Iterable[Operator]] = [
            self._embedding(backward), self._norm(backward), self._norm(backward),
            self._products([self._joining], trained, backward),
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
        trained, products = self.size.trained(number + 1), self._attention_products
        ahead = [*self._norm_at("ahead", backward), *self._products(products[:-1], trained, backward)]
        mixed = [*self._rotation(backward), *self._attention(number, backward)]
        behind = [
            *self._products(products[-1:], trained, backward), *self._norm_at("behind", backward),
            *self._residual(trained, backward),
        ]  # fmt: skip
        for part in (behind, mixed, ahead) if backward else (ahead, mixed, behind):
            yield from part

    def _feed_forward_half(self, number: int, backward: bool) -> Iterator[Operator]:
        trained = self.size.trained(number + 1)
        parts = [list(self._norm_at("ahead", backward))]
        if self.size.has_experts(number):
            parts.append(list(self._experts(trained, backward)))
        if self.size.dense_width(number):
            parts.append(list(self._fed(self._feed_forward_products(number), trained, backward)))
        parts += [list(self._norm_at("behind", backward)), list(self._residual(trained, backward))]
        for part in reversed(parts) if backward else parts:
            yield from part

    def _fed(self, products: Sequence[BlockProduct], trained: str, backward: bool) -> Iterator[Operator]:
        """Yields the products of a feed-forward layer, or of experts, with what is between them."""
        enters, leaves = products
        parts = [
            self._products([enters], trained, backward),
            self._activation(enters.tokens * leaves.inner, backward),
            self._products([leaves], trained, backward),
        ]
        for part in reversed(parts) if backward else parts:
            yield from part

    def _experts(self, trained: str, backward: bool) -> Iterator[Operator]:
        """Yields the choice of experts, their grouped products, and the moves of tokens to them and back: they are
        sorted by experts, and once more where they come from several devices for several experts.
        """
        size, tokens, (router, *experts) = self.size, self.tokens / self.cut, self._expert_products
        scores = _ROUTING_BYTES * tokens * size.num_experts / (2 if backward else 1)
        moved = self.width * (tokens + self.routed) * size.hidden
        choice = [*self._products([router], trained, backward), stream("route", scores / 2, scores / 2)]
        inner = list(self._fed(experts, trained, backward))
        if self.degrees.expert > 1 and experts[0].experts > 1:
            sort = stream("sort", self.width * self.routed * size.hidden, self.width * self.routed * size.hidden)
            inner = [sort, *inner, sort]
        around = [stream("permute", moved / 2, moved / 2), *inner, stream("unpermute", moved / 2, moved / 2)]
        yield from (*around, *reversed(choice)) if backward else (*choice, *around)

    @functools.cached_property
    def _attention_products(self) -> list[BlockProduct]:
        """The products of attention, the last one that behind it."""
        size, tensor, own = self.size, self.degrees.tensor, self.tokens / self.cut

        def of(inner: float, *parts: float, tokens: float = self.tokens) -> BlockProduct:
            return BlockProduct(tokens, parts, inner, "attention")

        heads, behind = size.num_heads / tensor, of(size.num_heads * size.value_size / tensor, size.hidden)
        if not size.latent_rank:
            keys = max(size.kv_heads / tensor, 1.0) * size.head_size
            return [of(size.hidden, heads * size.head_size, keys, keys), behind]
        queries = heads * (size.head_size + size.rotary_size)
        of_queries = [of(size.hidden, queries)]
        if size.query_rank:
            of_queries = [of(size.hidden, size.query_rank, tokens=own), of(size.query_rank, queries)]
        latent = [
            of(size.hidden, size.latent_rank + size.rotary_size, tokens=own),
            of(size.latent_rank, heads * (size.head_size + size.value_size)),
        ]
        return [*of_queries, *latent, behind]

    def _feed_forward_products(self, number: int) -> list[BlockProduct]:
        """The products of the feed-forward layer that all tokens go through in a block of a number, if there is one."""
        size, width = self.size, self.size.dense_width(number) / self.degrees.tensor
        enters = BlockProduct(self.tokens, (width,) * (1 + size.gated), size.hidden, "feed_forward")
        return [enters, BlockProduct(self.tokens, (size.hidden,), width, "feed_forward")] if width else []

    @functools.cached_property
    def _expert_products(self) -> list[BlockProduct]:
        """The product by which experts are chosen, and those of the experts."""
        size, local = self.size, self.size.num_experts / self.degrees.expert
        width = size.feed_forward / self.degrees.expert_tensor
        return [
            BlockProduct(self.tokens / self.cut, (size.num_experts,), size.hidden, "router"),
            BlockProduct(self.routed, (width,) * (1 + size.gated), size.hidden, "feed_forward", local),
            BlockProduct(self.routed, (size.hidden,), width, "feed_forward", local),
        ]

    def block_products(self, number: int) -> list[BlockProduct]:
        """Returns the products of a block of a number, but for the router."""
        joining = [self._joining] if number in self.size.predicting else []
        experts = self._expert_products[1:] if self.size.has_experts(number) else []
        return [*joining, *self._attention_products, *self._feed_forward_products(number), *experts]

    @property
    def _joining(self) -> BlockProduct:
        """The product ahead of a block that predicts."""
        hidden = self.size.hidden
        return BlockProduct(self.tokens, (hidden / self.degrees.tensor,), 2.0 * hidden, "joining")

    def _attention(self, number: int, backward: bool) -> Iterator[Operator]:
        """Yields attention over a device's samples. Devices that share tokens have some of its heads each, or a part of
        the tokens: then there is a kernel for each device's keys, of which others see a half, so that each has as much
        to do, and their results are merged.
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
        flop = 4 * samples * heads * size.pairs(number) / steps**2 * head * (_BACKWARD if backward else 1)
        for seen, count in ((tokens, 1), (tokens / 2, steps - 1))[: min(steps, 2)]:
            kernel = FusedAttention(
                self.execution.attention, causal=seen == tokens, backward=backward, capped=size.attention_cap > 0,
                window=window if window < size.sequence else 0,
            )  # fmt: skip
            moved = self.width * samples * head * (2 * tokens * heads + 2 * seen * keys)
            shapes = tuple(
                (max(round(samples), 1), round(length), round(of), round(head))
                for length, of in ((tokens, heads), (seen, keys))
            )
            yield Operator(
                "attention", "attention", shapes, (shapes[0],), _usual(size), flop,
                read_bytes=moved * (1.5 if backward else 0.75), written_bytes=moved * (0.75 if backward else 0.25),
                kernel=kernel.text, count=count,
            )  # fmt: skip
        if steps > 1:
            # Results, or going backward gradients of queries, keys and values, are added up.
            merged = self.width * samples * tokens * head * _MERGED * (heads + 2 * keys if backward else heads)
            yield dataclasses.replace(stream("merge", 2 * merged, merged), count=steps - 1)

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

    def _residual(self, trained: str, backward: bool) -> Iterator[Operator]:
        hidden = self.width * self.hidden
        yield stream("residual", 2 * hidden, hidden)
        if backward and self.size.biased("out") and trained == "all":
            yield stream("bias gradient", hidden, 1.0)

    def _activation(self, elements: float, backward: bool) -> Iterator[Operator]:
        entering, leaving = self.width * elements * (1 + self.size.gated), self.width * elements
        yield (
            stream("activation", entering + leaving, entering) if backward else stream("activation", entering, leaving)
        )

    # Products, with the casts that their precision takes

    def _products(self, products: Sequence[BlockProduct], trained: str, backward: bool) -> Iterator[Operator]:
        for of_block in reversed(products) if backward else products:
            narrow = of_block.target != "router"
            if narrow and trained != "all":
                yield from self._dequantised(of_block)
            yield from self._product(of_block, backward, trained == "all", narrow)
            if trained == "adapters" and of_block.has_adapters(self.size):
                yield from self._adapted(of_block, backward)

    def _product(self, of: BlockProduct, backward: bool, trained: bool, narrow: bool) -> Iterator[Operator]:
        """Yields a product, or those of its backward pass: the gradient of its rows, and that of its weights."""
        tokens, columns, inner = of.tokens, of.columns, of.inner
        dtype = self.size.computes_in.products if narrow else _usual(self.size)
        if narrow:
            yield from self._cast(tokens * (columns if backward else inner))
        if not backward:
            yield self._multiplied(of, columns, inner, dtype)
            return
        yield self._multiplied(of, inner, columns, dtype)
        if trained and of.experts:
            yield dataclasses.replace(self._multiplied(of, columns, inner, dtype), by_weight=True)
            yield from self._added(of.elements)
        elif trained:
            yield from self._weight_gradient(tokens, columns, inner, dtype)

    def _multiplied(self, of: BlockProduct, columns: float, inner: float, dtype: str) -> Operator:
        if of.experts:
            return grouped(of.tokens, columns, inner, of.experts, dtype)
        return product(of.tokens, columns, inner, dtype)

    def _weight_gradient(self, tokens: float, columns: float, inner: float, dtype: str) -> Iterator[Operator]:
        yield dataclasses.replace(product(columns, inner, tokens, dtype), by_weight=True)
        yield from self._added(columns * inner)

    def _adapted(self, of: BlockProduct, backward: bool) -> Iterator[Operator]:
        """Yields the products of a product's adapters, and the sum of their result and the product's."""
        narrow, wide = of.adapters(self.size.lora)
        summed = self.width * of.tokens * (of.inner if backward else of.columns)
        for of_adapter in (wide, narrow) if backward else (narrow, wide):
            yield from self._product(of_adapter, backward, trained=True, narrow=False)
        yield stream("add adapters", 2 * summed, summed)

    def _dequantised(self, of: BlockProduct) -> Iterator[Operator]:
        """Yields what makes frozen weights that are kept in fewer bits as wide as the product takes them."""
        if self.size.frozen_bytes < self.width:
            yield stream("dequantise", self.size.frozen_bytes * of.elements, self.width * of.elements)

    def _cast(self, elements: float) -> Iterator[Operator]:
        """Yields the cast to fewer bits of an operand: it is read, and written as it is and transposed."""
        precision = self.size.computes_in
        if precision.operand_bytes:
            yield stream("cast", precision.reads * self.width * elements, 2 * precision.operand_bytes * elements)

    def _added(self, elements: float) -> Iterator[Operator]:
        """Yields the sum of a weight's gradient and what earlier micro-batches left, where it is kept in memory."""
        if self.execution.adds_in_place:
            moved = self.execution.gradient_bytes * elements
            yield dataclasses.replace(stream("add", moved, moved - self.width * elements), by_weight=True)

    def _update(self, layer: int) -> Iterator[Operator]:
        """Yields the optimizer's update of the part of a layer's parameters that a device updates, and what it does
        with all gradients that it keeps: their norm, and setting them to zero.
        """
        of_layer, zero = self.parameter_bytes(layer), self.degrees.zero
        kept = sum(self.shared((own.gradients for own in of_layer), zero == 3))
        moved = sum(self.shared((own.traffic for own in of_layer), zero > 0))
        if not kept:
            return
        yield _of_parameters(stream("norm of gradients", kept, 1.0))
        yield from self._made_orthogonal(layer)
        yield _of_parameters(stream("update", moved / 2, moved / 2))
        yield _of_parameters(stream("zero", 0.0, kept))

    def _made_orthogonal(self, layer: int) -> Iterator[Operator]:
        """Yields the products of Newton's and Schulz's iterations on the whole matrices that a device updates."""
        iterations = self.size.updated_by.iterations
        for group in self.parameters(layer) if iterations else ():
            matrices = self.size.num_blocks * sum(number for *_, number in group.shapes)
            share = min(self.shares[not group.experts], matrices) if self.owns_matrices else 1
            for rows, columns, number in group.shapes if group.kind == MATRIX and group.trained else ():
                few, many = min(rows, columns), max(rows, columns)
                for sizes in ((few, few, many), (few, few, few), (few, many, few)):
                    yield dataclasses.replace(product(*sizes, "bfloat16"), count=iterations * number / share)

    @property
    def owns_matrices(self) -> bool:
        """Returns whether an optimizer of whole matrices updates each on one of the devices that share its state."""
        return self.execution.owns_matrices and self.degrees.zero in (1, 2)

    def shared(self, of_layer: Iterable[float], divided: bool) -> list[float]:
        """Returns what a device has of something of experts' parameters, and of all others': its share by ZeRO."""
        return [whole / (share if divided else 1) for whole, share in zip(of_layer, self.shares, strict=True)]

    @property
    def shares(self) -> tuple[int, int]:
        """Returns among how many devices ZeRO shares what it shares: of experts' parameters, and of all others."""
        return self.degrees.expert_sharded if self.degrees.experts_apart else self.degrees.sharded, self.degrees.sharded

    def parameters(self, layer: int) -> list[ParameterGroup]:
        """Returns the parameters of a layer that a device computes with, by the way they are kept.

        Norms and others are whole on each of the tensor-parallel devices, and so are keys of which there are fewer.
        """
        size, trained = self.size, self.size.trained(layer) == "all"
        groups: list[ParameterGroup] = []
        if layer in (0, size.num_layers - 1):
            rows = 0.0 if layer and size.tied else self.vocabulary
            more = size.norm_parameters if layer else size.position_rows * size.hidden / self.degrees.tensor
            shapes = ((rows, float(size.hidden), 1.0),) if rows else ()
            groups.append(ParameterGroup(rows * size.hidden, TABLE, trained=trained, shapes=shapes))
            groups.append(ParameterGroup(more, VECTOR, trained=trained))
        return [*groups, *(group for number in size.blocks_of(layer) for group in self._of_block(number))]

    def _of_block(self, number: int) -> Iterator[ParameterGroup]:
        """Yields the parameters of a block: its experts' and others, those of products and all else, and adapters."""
        size, trained = self.size, self.size.trained(number + 1)
        whole = dataclasses.replace(self, degrees=ALONE).block_products(number)
        divided = self.degrees.expert_tensor * self.degrees.expert
        for experts, share in ((False, 1), (True, divided if size.has_experts(number) else 1)):
            own = [of for of in self.block_products(number) if bool(of.experts) == experts]
            products = sum(of.elements for of in whole if bool(of.experts) == experts)
            yield ParameterGroup.of(own, experts, trained == "all")
            more = (size.block_parameters(number, experts) - products) / share
            yield ParameterGroup(more, VECTOR, experts, trained == "all")
            if trained == "adapters":
                adapters = [part for of in own if of.has_adapters(size) for part in of.adapters(size.lora)]
                yield ParameterGroup.of(adapters, experts, adapters=True)

    def parameter_bytes(self, layer: int) -> tuple[ParameterBytes, ParameterBytes]:
        """Returns the bytes of the parameters of a layer that a device computes with: experts', and all others."""
        degrees = self.degrees
        same = DivisionDegrees(tensor=degrees.tensor, expert=degrees.expert, expert_tensor=degrees.expert_tensor)
        return dataclasses.replace(self, degrees=same, samples=1.0)._bytes_of(layer, self.owns_matrices)

    @functools.lru_cache(maxsize=4096)  # noqa: B019 (these are few, and small)
    def _bytes_of(self, layer: int, owns: bool) -> tuple[ParameterBytes, ParameterBytes]:
        groups, goes_back = self.parameters(layer), self.goes_back(layer)
        of_experts, of_others = (
            ParameterBytes.of(
                [group for group in groups if group.experts == experts], self.size, self.execution,
                owns=owns, goes_back=goes_back,
            )
            for experts in (True, False)
        )  # fmt: skip
        return of_experts, of_others


def _usual(size: Transformer) -> str:
    """The dtype of all but the products of blocks."""
    return size.computes_in.usual


def _of_parameters(operator: Operator) -> Operator:
    """Returns the operator, all of whose reads and writes are of parameters, gradients and the optimizer's states."""
    return dataclasses.replace(
        operator, unbatched_read_bytes=operator.read_bytes, unbatched_written_bytes=operator.written_bytes
    )
