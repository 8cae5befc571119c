"""The records of what training frameworks run: products, grouped products, attention, and kernels that stream."""

from __future__ import annotations

from collections.abc import Iterator

from alpa_dejavu.problem import Operator

CAPPED = "capped scores"
PLAIN_ATTENTION = ("scores", "softmax", "dropout", "mixed", CAPPED)
"""The names of the kernels of attention whose scores go through memory."""


_WIDTHS = {
    "float4": 0.5, "float8": 1.0, "float8_blocks": 1.0, "float8_micro": 1.0, "bfloat16": 2.0, "float16": 2.0,
    "tf32": 4.0, "float32": 4.0,
}  # fmt: skip
"""The bytes of an element by its dtype."""


def _shape(*sizes: float) -> tuple[int, ...]:
    return tuple(max(round(size), 1) for size in sizes)


def product(rows: float, columns: float, inner: float, dtype: str) -> Operator:
    """Returns a matrix product of (rows, inner) and (inner, columns) elements; numbers needn't be whole."""
    width, elements = _WIDTHS[dtype], rows * columns
    return Operator(
        "dot", "dot_general", (_shape(rows, inner), _shape(inner, columns)), (_shape(rows, columns),), dtype,
        2.0 * elements * inner, read_bytes=width * inner * (rows + columns), written_bytes=max(width, 2.0) * elements,
        parameter_bytes=width * inner * columns,
    )  # fmt: skip


def grouped(tokens: float, columns: float, inner: float, experts: float, dtype: str) -> Operator:
    """Returns a grouped product: each expert's tokens by its own matrix of (inner, columns) elements."""
    width, operands = _WIDTHS[dtype], (_shape(tokens, inner), _shape(experts, inner, columns))
    return Operator(
        "grouped", "grouped_dot", operands, (_shape(tokens, columns),), dtype, 2.0 * tokens * columns * inner,
        read_bytes=width * inner * (tokens + experts * columns), written_bytes=max(width, 2.0) * tokens * columns,
        parameter_bytes=width * experts * inner * columns,
    )  # fmt: skip


def stream(name: str, read_bytes: float, written_bytes: float) -> Operator:
    """Returns a kernel that does little but read and write memory."""
    return Operator(
        "elementwise", name, (), (), "bfloat16", (read_bytes + written_bytes) / 2, read_bytes=read_bytes,
        written_bytes=written_bytes,
    )  # fmt: skip


def plain_attention(heads: float, tokens: int, head: float, dtype: str, backward: bool) -> Iterator[Operator]:
    """Yields attention whose scores go through memory: products for each head, a softmax and a dropout, each a kernel.

    Args:
        heads: how many heads there are, of all samples together.
        tokens: the tokens of a sample.
        head: the width of a head.
        dtype: that of its products.
        backward: whether it is the backward pass.
    """
    mask = heads * tokens**2
    moved = _WIDTHS[dtype] * mask
    scores = _batched("scores", heads, tokens, tokens, head, dtype)
    mixed = _batched("mixed", heads, tokens, head, tokens, dtype)
    if backward:
        # Gradients of values and of probabilities, then of queries and keys.
        yield from (mixed, scores, stream("dropout", moved + mask, moved), stream("softmax", 2 * moved, moved))
        yield from (mixed, mixed)
    else:
        yield from (scores, stream("softmax", moved, moved), stream("dropout", moved, moved + mask), mixed)


def _batched(name: str, batch: float, rows: float, columns: float, inner: float, dtype: str) -> Operator:
    operands = _shape(batch, rows, inner), _shape(batch, inner, columns)
    width = _WIDTHS[dtype]
    return Operator(
        "dot", name, operands, (_shape(batch, rows, columns),), dtype, 2.0 * batch * rows * columns * inner,
        read_bytes=width * batch * inner * (rows + columns), written_bytes=width * batch * rows * columns,
    )  # fmt: skip
