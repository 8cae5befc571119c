"""ATen's products, convolutions, tables and attention as functions of jax arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from alpa_dejavu.layers.attention.fused import mark_fused
from alpa_dejavu.layers.torch_modules._elementwise import ELEMENTWISE


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    product = jax.lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())))
    return product if bias is None else product + bias


def _addmm(x: Any, left: Any, right: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    product = left @ right
    return (x if beta == 1 else beta * x) + (product if alpha == 1 else alpha * product)


def _convolution(
    x: Any, weight: Any, bias: Any = None, stride: Sequence[int] = (1,), padding: str | Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), groups: int = 1,
) -> Any:  # fmt: skip
    """A convolution over any number of dimensions, of arrays (batch, channels, ...)."""
    space = weight.ndim - 2
    strides, dilations = (list(sizes) * (space // len(sizes)) for sizes in (stride, dilation))
    widths = padding.upper() if isinstance(padding, str) else _both_ends(padding, space)
    result = jax.lax.conv_general_dilated(
        x, weight, strides, widths, rhs_dilation=dilations, feature_group_count=groups
    )  # fmt: skip
    return result if bias is None else result + bias.reshape(-1, *(1,) * space)


def _both_ends(padding: Sequence[int], space: int) -> list[tuple[int, int]]:
    return [(n, n) for n in (padding if len(padding) == space else list(padding) * space)]


def _embedding(
    weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    rows = jnp.take(weight, indices, axis=0, mode="clip")
    if padding_idx < 0:
        return rows
    return jnp.where((indices == padding_idx)[..., None], jax.lax.stop_gradient(rows), rows)


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Attention of arrays (..., heads, tokens, elements), marked as one fused kernel; groups of heads may share keys.

    The softmax is in single precision, as kernels compute it.
    """
    *_, heads, tokens, head = query.shape
    key_heads, key_tokens = (key.shape[-3] if enable_gqa else heads), key.shape[-2]
    grouped = query.reshape(*query.shape[:-3], key_heads, heads // key_heads, tokens, head) if enable_gqa else query
    letters = "...kgtd,...ksd->...kgts" if enable_gqa else "...td,...sd->...ts"
    scores = jnp.einsum(letters, grouped * (1 / math.sqrt(head) if scale is None else scale), key)
    scores = scores.astype(jnp.float32)
    if is_causal:
        attn_mask = jax.lax.iota(jnp.int32, tokens)[:, None] >= jax.lax.iota(jnp.int32, key_tokens)[None, :]
    if attn_mask is not None:
        if enable_gqa and attn_mask.ndim > 2:
            attn_mask = _by_groups(attn_mask, key_heads, heads)
        masked = jnp.finfo(jnp.float32).min
        scores = jnp.where(attn_mask, scores, masked) if attn_mask.dtype == bool else scores + attn_mask
    weights = ELEMENTWISE["dropout"](jax.nn.softmax(mark_fused(scores), axis=-1), dropout_p, True)
    letters = "...kgts,...ksd->...kgtd" if enable_gqa else "...ts,...sd->...td"
    mixed = jnp.einsum(letters, weights.astype(value.dtype), value)
    return mixed.reshape(*query.shape[:-1], value.shape[-1])


def _by_groups(mask: Any, key_heads: int, heads: int) -> Any:
    """A mask of heads, of one or of all, as one of groups of heads."""
    groups = (1, 1) if mask.shape[-3] == 1 else (key_heads, heads // key_heads)
    return mask.reshape(*mask.shape[:-3], *groups, *mask.shape[-2:])


def _grouped(x: Any, weights: Any, ends: Any, *_: Any) -> Any:
    """The product of each row and the matrix of its group, where rows of group n end before `ends[n]`."""
    group = (jnp.arange(len(x))[:, None] >= ends).sum(-1)
    return jnp.einsum("sk,skn->sn", x, jnp.take(weights, group, axis=0, mode="clip"))


def spread_evenly(x: Any, weights: Any, ends: Any, *_: Any) -> Any:
    """Returns the product of rows and the matrices of groups that have equally many rows each, which is what a plan
    takes experts' tokens to be: how many each has is known only once numbers are.
    """
    groups = len(weights)
    places = -(-len(x) // groups)
    rows = jnp.pad(x, ((0, places * groups - len(x)), (0, 0))).reshape(groups, places, -1)
    return jnp.einsum("gsk,gkn->gsn", rows, weights).reshape(groups * places, -1)[: len(x)]


PRODUCTS: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "matmul": jnp.matmul,
    "mm": jnp.matmul,
    "bmm": jnp.matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "einsum": lambda equation, operands, path=None: jnp.einsum(equation, *operands),
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
    "embedding": _embedding,
    "scaled_dot_product_attention": _attention,
    "_grouped_mm": _grouped,
    "grouped_mm_fallback": _grouped,
}
EVENLY: dict[str, Callable[..., Any]] = {name: spread_evenly for name, op in PRODUCTS.items() if op is _grouped}
"""What stands for operators whose work depends on numbers, where these aren't known."""
