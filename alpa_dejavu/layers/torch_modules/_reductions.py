"""ATen's reductions, norms, pools, orders and losses as functions of jax arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

Dims = int | Sequence[int] | None


def _axes(dim: Dims) -> int | tuple[int, ...] | None:
    return dim if dim is None or isinstance(dim, int) else tuple(dim) or None


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator that reduces dimensions, or all of them without any."""

    def operator(x: Any, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        return function(x if dtype is None else x.astype(dtype), axis=_axes(dim), keepdims=keepdim)

    return operator


def _spread(function: Callable[..., Any]) -> Callable[..., Any]:
    """A variance or a deviation, by its function in jax; ATen's overloads have `unbiased` or a correction."""

    def operator(
        x: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = 1
    ) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        ddof = (1 if correction is None else correction) if unbiased else 0
        return function(x, axis=_axes(dim), ddof=ddof, keepdims=keepdim)

    return operator


def _extreme(largest: bool) -> Callable[..., Any]:
    """`max` or `min`: of all elements; along a dimension, with the places; or of two arrays."""
    of_two = jnp.maximum if largest else jnp.minimum
    of_all, place = (jnp.max, jnp.argmax) if largest else (jnp.min, jnp.argmin)

    def operator(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return of_all(x)
        if not isinstance(dim, int):
            return of_two(x, dim)
        return of_all(x, dim, keepdims=keepdim), place(x, dim, keepdims=keepdim)

    return operator


def _softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    return jax.nn.softmax(x if dtype is None else x.astype(dtype), axis=dim)


def _log_softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    return jax.nn.log_softmax(x if dtype is None else x.astype(dtype), axis=dim)


def _vector_norm(x: Any, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Any:  # noqa: A002
    x = jnp.abs(x if dtype is None else x.astype(dtype))
    if math.isinf(ord):
        return x.max(_axes(dim), keepdims=keepdim)
    return (x**ord).sum(_axes(dim), keepdims=keepdim) ** (1 / ord)


def _normal(x: Any, axes: Sequence[int], eps: float) -> Any:
    """An array with mean 0 and variance 1 along some of its dimensions."""
    precise = x.astype(jnp.float32)
    centred = precise - precise.mean(axes, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(axes, keepdims=True) + eps)


def _affine(x: Any, weight: Any, bias: Any, dtype: Any) -> Any:
    x = x if weight is None else x * weight
    return (x if bias is None else x + bias).astype(dtype)


def _layer_norm(
    x: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enable: bool = True
) -> Any:
    return _affine(_normal(x, range(x.ndim - len(shape), x.ndim), eps), weight, bias, x.dtype)


def _rms_norm(x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    precise = x.astype(jnp.float32)
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    least = float(jnp.finfo(x.dtype).eps) if eps is None else eps
    normal = precise * jax.lax.rsqrt((precise**2).mean(axes, keepdims=True) + least)
    return _affine(normal, weight, None, x.dtype)


def _of_channels(x: Any, numbers: Any) -> Any:
    return None if numbers is None else numbers.reshape(-1, *(1,) * (x.ndim - 2))


def _group_norm(
    x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Any:
    rows = _normal(x.reshape(x.shape[0], groups, -1), [2], eps).reshape(x.shape)
    return _affine(rows, _of_channels(x, weight), _of_channels(x, bias), x.dtype)


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float, cudnn: bool
) -> Any:
    """A batch norm without the update of its running statistics."""
    if training or mean is None:
        normal = _normal(x, [0, *range(2, x.ndim)], eps)
    else:
        normal = (x - _of_channels(x, mean)) * jax.lax.rsqrt(_of_channels(x, var) + eps)
    return _affine(normal, _of_channels(x, weight), _of_channels(x, bias), x.dtype)


def _windows(x: Any, sizes: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil: bool) -> dict[str, Any]:
    """The arguments of a reduction over windows of the last dimensions; `ceil` has the last one reach over the end."""
    space = len(sizes)
    strides, pads = list(stride or sizes), list(padding) * (space // len(padding))
    ends = []
    for size, step, pad, length in zip(sizes, strides, pads, x.shape[-space:], strict=True):
        rest = (length + 2 * pad - size) % step
        ends.append((pad, pad + (step - rest if ceil and rest else 0)))
    front = x.ndim - space
    return {
        "window_dimensions": (*(1,) * front, *sizes), "window_strides": (*(1,) * front, *strides),
        "padding": (*((0, 0),) * front, *ends),
    }  # fmt: skip


def _max_pool(
    x: Any, sizes: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> Any:  # fmt: skip
    windows = _windows(x, sizes, stride, padding, ceil_mode)
    dilations = (*(1,) * (x.ndim - len(sizes)), *(list(dilation) * (len(sizes) // len(dilation))))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, **windows, window_dilation=dilations)


def _avg_pool(
    x: Any, sizes: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    windows = _windows(x, sizes, stride, padding, ceil_mode)
    sums = jax.lax.reduce_window(x, 0.0, jax.lax.add, **windows)
    if count_include_pad or not any(padding):
        return sums / (divisor_override or math.prod(sizes))
    return sums / jax.lax.reduce_window(jnp.ones_like(x), 0.0, jax.lax.add, **windows)


def _adaptive_avg_pool(x: Any, sizes: Sequence[int]) -> Any:
    space = x.shape[-len(sizes) :]
    if any(length % size for length, size in zip(space, sizes, strict=True)):
        raise ValueError(
            f"output_size of an adaptive pool is {tuple(sizes)}, but must divide {space}; give images that it divides"
        )
    return _avg_pool(x, [length // size for length, size in zip(space, sizes, strict=True)])


def _argsort(x: Any, dim: int = -1, descending: bool = False, *, stable: bool = True) -> Any:
    return jnp.argsort(x, dim, stable=True, descending=descending)


def _sort(x: Any, dim: int = -1, descending: bool = False, *, stable: bool = True) -> Any:
    order = _argsort(x, dim, descending)
    return jnp.take_along_axis(x, order, dim), order


def _topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:  # noqa: A002
    values, places = jax.lax.top_k(jnp.moveaxis(x if largest else -x, dim, -1), k)
    return jnp.moveaxis(values if largest else -values, -1, dim), jnp.moveaxis(places, -1, dim)


def _histc(x: Any, bins: int, min: float, max: float) -> Any:  # noqa: A002
    place = jnp.floor((x.reshape(-1).astype(jnp.float32) - min) * (bins / (max - min)))
    place = jnp.where(x.reshape(-1) == max, bins - 1, place).astype(jnp.int32)
    return jax.nn.one_hot(place, bins).sum(0)


_REDUCTIONS = (lambda x: x, jnp.mean, jnp.sum)
"""By ATen's numbers: none, the mean and the sum."""


def _cross_entropy(
    x: Any, target: Any, weight: Any = None, reduction: int = 1, ignore_index: int = -100, label_smoothing: float = 0.0
) -> Any:
    axis = 1 if x.ndim > 1 else 0
    return _likelihood(jax.nn.log_softmax(x, axis), target, weight, reduction, ignore_index, label_smoothing)


def _likelihood(
    log_p: Any, target: Any, weight: Any = None, reduction: int = 1, ignore_index: int = -100, smoothing: float = 0.0
) -> Any:
    """The negative logarithm of the classes' probabilities, by weights of classes; targets may be probabilities."""
    axis = 1 if log_p.ndim > 1 else 0
    classes = log_p.shape[axis]
    weights = 1.0 if weight is None else weight.reshape(-1, *(1,) * (log_p.ndim - axis - 1))
    if target.ndim == log_p.ndim:
        smooth = target * (1 - smoothing) + smoothing / classes
        losses = -(smooth * weights * log_p).sum(axis)
        return losses.sum() / (losses.size if reduction == 1 else 1) if reduction else losses
    valid = target != ignore_index
    chosen = jax.nn.one_hot(target, classes, dtype=log_p.dtype, axis=axis)
    losses = -(chosen * weights * log_p).sum(axis)
    if smoothing:
        spread = -(weights * log_p).sum(axis) / classes
        losses = (1 - smoothing) * losses + smoothing * jnp.where(valid, spread, 0)
    if reduction != 1:
        return losses.sum() if reduction else losses
    return losses.sum() / (valid.sum() if weight is None else (chosen * weights).sum())


def _binary_cross_entropy(x: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1) -> Any:
    positive = 1.0 if pos_weight is None else pos_weight
    losses = -(positive * target * jax.nn.log_sigmoid(x) + (1 - target) * jax.nn.log_sigmoid(-x))
    return _REDUCTIONS[reduction](losses if weight is None else losses * weight)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": _reduced(jnp.sum),
    "mean": _reduced(jnp.mean),
    "prod": _reduced(jnp.prod),
    "amax": _reduced(jnp.max),
    "amin": _reduced(jnp.min),
    "any": _reduced(jnp.any),
    "all": _reduced(jnp.all),
    "argmax": _reduced(jnp.argmax),
    "argmin": _reduced(jnp.argmin),
    "logsumexp": _reduced(jax.nn.logsumexp),
    "var": _spread(jnp.var),
    "std": _spread(jnp.std),
    "max": _extreme(largest=True),
    "min": _extreme(largest=False),
    "linalg_vector_norm": _vector_norm,
    "cumsum": lambda x, dim, *, dtype=None: jnp.cumsum(x, dim, dtype),
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "max_pool2d": _max_pool,
    "avg_pool2d": _avg_pool,
    "adaptive_avg_pool2d": _adaptive_avg_pool,
    "argsort": _argsort,
    "sort": _sort,
    "topk": _topk,
    "histc": _histc,
    "cross_entropy_loss": _cross_entropy,
    "nll_loss_nd": _likelihood,
    "mse_loss": lambda x, target, reduction=1: _REDUCTIONS[reduction]((x - target) ** 2),
    "l1_loss": lambda x, target, reduction=1: _REDUCTIONS[reduction](jnp.abs(x - target)),
    "binary_cross_entropy_with_logits": _binary_cross_entropy,
}
