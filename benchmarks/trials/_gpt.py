"""A GPT's layers as a framework like Megatron-LM computes them: an embedding, blocks and a head, operator by operator.

References:
    Shoeybi et al., Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism, 2019.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import final

from alpa_dejavu.problem import Layer, Model, Operator, Operators, Tensor

_STATE_BYTES = 12.0
"""Of a parameter: its copy in single precision, and Adam's two moments."""
_UPDATED = 4
"""Fused kernels in which the optimizer updates a layer."""


@final
@dataclasses.dataclass(frozen=True)
class GPT:
    """Sizes of a GPT and of its micro-batch; `num_bytes` of an element of activations, parameters and gradients."""

    hidden: int
    heads: int
    blocks: int
    sequence: int
    vocabulary: int
    samples: int = 1
    num_bytes: int = 2

    @property
    def dtype(self) -> str:
        """Of its products."""
        return {2: "float16", 4: "float32"}[self.num_bytes]

    @property
    def parameters(self) -> list[float]:
        """Of each layer; those of the head are the embedding's table."""
        table, block = self.vocabulary * self.hidden, 12 * self.hidden**2 + 13 * self.hidden
        return [float(table + self.sequence * self.hidden), *[float(block)] * self.blocks, float(table)]

    @property
    def boundary_bytes(self) -> float:
        """Of one micro-batch's activations between two layers."""
        return float(self.samples * self.sequence * self.hidden * self.num_bytes)

    @property
    def kept_bytes(self) -> list[float]:
        """Of one micro-batch's activations that each layer keeps for its backward pass.

        Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, MLSys 2023, equation 1.
        """
        tokens = self.samples * self.sequence
        block = (
            tokens
            * self.hidden
            * (17 * self.num_bytes + 2.5 * self.num_bytes * self.heads * self.sequence / self.hidden)
        )
        return [tokens * 8.0, *[block] * self.blocks, float(tokens * self.vocabulary * (self.num_bytes + 4))]

    def model(self) -> Model:
        """Its training step: layers 0 (embedding), 1 to `blocks`, and the head."""
        parts = [self._embedding(), self._block(), self._head()]
        first, block, last = (
            Layer(name, ahead, back, self._update(parameters), exchanged_bytes=sums)
            for (name, ahead, back, sums), parameters in zip(
                parts, self.parameters[:2] + self.parameters[-1:], strict=True
            )
        )
        layers = (first, *[block] * self.blocks, last)
        return Model(layers, tuple(self._tensors(len(layers))))

    def _tensors(self, count: int) -> Iterator[Tensor]:
        last = 2 * count - 1
        for n, (parameters, kept) in enumerate(zip(self.parameters, self.kept_bytes, strict=True)):
            if n + 1 < count:
                tied = (count - 1,) if n == 0 else ()
                for role, each in (
                    ("parameter", self.num_bytes),
                    ("gradient", self.num_bytes),
                    ("optimizer", _STATE_BYTES),
                ):
                    users = (n, *tied, last - n) if role == "parameter" else (n, *tied)
                    yield Tensor(parameters * each, role, -1, users)
                yield Tensor(self.boundary_bytes, "activation", n, (n + 1,))
                yield Tensor(self.boundary_bytes, "activation", last - n - 1, (last - n,))
            yield Tensor(kept, "activation", n, (last - n,))

    def _embedding(self) -> tuple[str, Operators, Operators, tuple[float, ...]]:
        moved = self.boundary_bytes
        ahead = [self._moving("gather", 2 * moved, moved), self._moving("elementwise", moved, moved)]
        back = [self._moving("elementwise", moved, moved), self._moving("scatter", moved, moved)]
        return "embedding", Operators.of(ahead), Operators.of(back), (moved,)

    def _block(self) -> tuple[str, Operators, Operators, tuple[float, ...]]:
        """All-reduces: two forward, two backward."""
        h, rows, s = self.hidden, self.samples * self.sequence, self.sequence
        moved, scores = self.boundary_bytes, float(self.samples * self.heads * s * s * self.num_bytes)
        each = h // self.heads
        batched = self.samples * self.heads
        norm = [self._moving("reduce", moved, 0.0), self._moving("elementwise", moved, moved)]
        dropped = [self._moving("elementwise", 2 * moved, moved)]
        attention = [
            *self._product(1, rows, 3 * h, h),
            self._moving("elementwise", 3 * moved, 3 * moved),
            self._moving("layout", 3 * moved, 3 * moved),
            *self._product(batched, s, s, each),
            self._moving("elementwise", scores, scores),
            self._moving("elementwise", scores, scores),
            self._moving("elementwise", scores, scores),
            *self._product(batched, s, each, s),
            self._moving("layout", moved, moved),
            *self._product(1, rows, h, h),
        ]
        feed = [
            *self._product(1, rows, 4 * h, h),
            self._moving("elementwise", 4 * moved, 4 * moved),
            *self._product(1, rows, h, 4 * h),
        ]
        ahead = [*norm, *attention, *dropped, *norm, *feed, *dropped]
        return "block", Operators.of(ahead), Operators.of(_backward(ahead)), (moved,) * 4

    def _head(self) -> tuple[str, Operators, Operators, tuple[float, ...]]:
        rows, moved = self.samples * self.sequence, self.boundary_bytes
        logits = float(rows * self.vocabulary)
        norm = [self._moving("reduce", moved, 0.0), self._moving("elementwise", moved, moved)]
        loss = [
            self._moving("elementwise", logits * self.num_bytes, logits * 4),
            self._moving("reduce", logits * 4, 0.0),
            self._moving("elementwise", logits * 4, logits * 4),
        ]
        ahead = [*norm, *self._product(1, rows, self.vocabulary, self.hidden), *loss]
        return "head", Operators.of(ahead), Operators.of(_backward(ahead)), (moved, 4.0 * rows)

    def _update(self, parameters: float) -> Operators:
        share = parameters / _UPDATED
        read, written = share * (2 * self.num_bytes + _STATE_BYTES), share * (self.num_bytes + _STATE_BYTES)
        return Operators.of([Operator("elementwise", "adam", ((int(share),),), ((int(share),),), "float32", 10 * share,
                                      read_bytes=read, written_bytes=written)] * _UPDATED)  # fmt: skip

    def _moving(self, kind: str, read: float, written: float) -> Operator:
        size = int(max(read, written) / self.num_bytes)
        out = int(written / self.num_bytes) or 1
        return Operator(kind, kind, ((size,),), ((out,),), self.dtype, float(size), read_bytes=read,
                        written_bytes=written or out * self.num_bytes)  # fmt: skip

    def _product(self, batch: int, rows: int, columns: int, inner: int) -> list[Operator]:
        left, right, result = ((batch, *each) for each in ((rows, inner), (inner, columns), (rows, columns)))
        weights = inner * columns * self.num_bytes if batch == 1 else 0.0
        read = batch * inner * (rows + columns) * self.num_bytes
        return [
            Operator(
                "dot", "dot_general", (left, right), (result,), self.dtype, 2.0 * batch * rows * columns * inner,
                read_bytes=read, written_bytes=batch * rows * columns * self.num_bytes,
                parameter_bytes=weights, unbatched_read_bytes=weights,
            )
        ]  # fmt: skip


def _backward(ahead: list[Operator]) -> list[Operator]:
    """Gradients: of a product two products, of anything else one operator that reads twice as much."""
    found: list[Operator] = []
    for one in reversed(ahead):
        if one.kind == "dot":
            (left, right), (result,) = one.input_shapes, one.output_shapes
            of_left = dataclasses.replace(one, input_shapes=(result, right), output_shapes=(left,))
            of_right = dataclasses.replace(
                one, input_shapes=(left, result), output_shapes=(right,), parameter_bytes=0.0, unbatched_read_bytes=0.0,
                unbatched_written_bytes=one.unbatched_read_bytes,
            )  # fmt: skip
            found += [of_left, of_right]
        else:
            found.append(dataclasses.replace(one, read_bytes=2 * one.read_bytes))
    return found
