"""ATen's operators that make arrays, or move elements of arrays, as functions of jax arrays and Python numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def _arange(*bounds: float, dtype: Any = None) -> Any:
    """The numbers as an iota, which readers of masks understand; an array of them would be a constant."""
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    chosen = dtype or (jnp.int32 if all(isinstance(bound, int) for bound in bounds) else jnp.float32)
    numbers = jax.lax.iota(chosen, max(-int((start - end) // step), 0))
    numbers = numbers if step == 1 else numbers * step
    return numbers if start == 0 else numbers + start


def _full(size: Sequence[int], value: Any = 0, *, dtype: Any = None) -> Any:
    return jnp.full(size, value, dtype)


def _like(x: Any, value: Any = 0, *, dtype: Any = None) -> Any:
    return jnp.full(x.shape, value, dtype or x.dtype)


def _new(x: Any, size: Sequence[int], value: Any = 0, *, dtype: Any = None) -> Any:
    return jnp.full(size, value, dtype or x.dtype)


def _to(x: Any, *target: Any, dtype: Any = None) -> Any:
    """`target` may have a type, or an array of it, among devices and flags."""
    types = [getattr(value, "dtype", value) for value in (dtype, *target) if not isinstance(value, (bool, type(None)))]
    return x.astype(types[0]) if types else x


def _flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    end = end_dim % x.ndim + 1
    return x.reshape(*x.shape[:start_dim], -1, *x.shape[end:])


def _unflatten(x: Any, dim: int, sizes: Sequence[int]) -> Any:
    dim %= x.ndim
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


def _squeeze(x: Any, dim: int | Sequence[int] | None = None) -> Any:
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return jnp.squeeze(x, tuple(d % x.ndim for d in dims if x.shape[d] == 1))


def _expand(x: Any, size: Sequence[int], *, implicit: bool = False) -> Any:
    own = (*(1,) * (len(size) - x.ndim), *x.shape)
    return jnp.broadcast_to(x, [n if wanted == -1 else wanted for n, wanted in zip(own, size, strict=True)])


def _repeat(x: Any, repeats: Sequence[int]) -> Any:
    return jnp.tile(x, repeats)


def _repeat_interleave(x: Any, repeats: int, dim: int | None = None, *, output_size: int | None = None) -> Any:
    return jnp.repeat(x, repeats, dim)


def _cat(arrays: Sequence[Any], dim: int = 0) -> Any:
    """ATen leaves out arrays of shape (0,), whatever shape the others have."""
    whole = [x for x in arrays if x.shape != (0,)] or arrays[:1]
    return jnp.concatenate(whole, dim)


def _split(x: Any, sizes: int | Sequence[int], dim: int = 0) -> list[Any]:
    length = x.shape[dim]
    ends = range(sizes, length, sizes) if isinstance(sizes, int) else list(itertools.accumulate(sizes))[:-1]
    return jnp.split(x, list(ends), dim)


def _chunk(x: Any, chunks: int, dim: int = 0) -> list[Any]:
    return _split(x, -(-x.shape[dim] // chunks), dim)


def _unbind(x: Any, dim: int = 0) -> list[Any]:
    return [_select(x, dim, n) for n in range(x.shape[dim])]


def _slice(x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    first, last, _ = slice(start, end).indices(x.shape[dim])
    return jax.lax.slice_in_dim(x, first, max(first, last), step, dim)


def _select(x: Any, dim: int, index: int) -> Any:
    return jax.lax.index_in_dim(x, index, dim, keepdims=False)


def _pad(x: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    if mode != "constant":
        raise ValueError(f"mode of padding is {mode!r}, but must be 'constant'; pad so, or by torch.cat")
    widths = [(0, 0)] * (x.ndim - len(pad) // 2) + list(zip(pad[-2::-2], pad[::-2], strict=True))
    fill = jnp.asarray(value or 0, x.dtype)
    return jax.lax.pad(x, fill, [(low, high, 0) for low, high in widths])


def _slice_scatter(
    x: Any, source: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    first, last, _ = slice(start, end).indices(x.shape[dim])
    return x.at[_ahead(x, dim, slice(first, last, step))].set(source)


def _select_scatter(x: Any, source: Any, dim: int, index: int) -> Any:
    return x.at[_ahead(x, dim, index)].set(source)


def _ahead(x: Any, dim: int, index: Any) -> tuple[Any, ...]:
    """The place of an index along one dimension, and of all along those before it."""
    return (*(slice(None),) * (dim % x.ndim), index)


def _roll(x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    return jnp.roll(x, shifts, dims) if dims else jnp.roll(x, shifts[0])


def _places(indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(slice(None) if index is None else index for index in indices)


def _index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    at = x.at[_places(indices)]
    return at.add(values) if accumulate else at.set(values)


def _along(x: Any, dim: int, index: Any) -> tuple[Any, ...]:
    """The places of `index` in an array, whose numbers go along one dimension."""
    grid: list[Any] = list(jnp.ogrid[tuple(slice(n) for n in index.shape)])
    grid[dim % x.ndim] = index
    return tuple(grid)


def _gather(x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    return x[_along(x, dim, index)]


def _scatter(x: Any, dim: int, index: Any, values: Any) -> Any:
    return x.at[_along(x, dim, index)].set(values if np.ndim(values) == 0 else _corner(values, index))


def _scatter_add(x: Any, dim: int, index: Any, values: Any) -> Any:
    return x.at[_along(x, dim, index)].add(_corner(values, index))


def _corner(values: Any, index: Any) -> Any:
    return values[tuple(slice(n) for n in index.shape)]


def _index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Any:
    return x.at[_ahead(x, dim, index)].add(source if alpha == 1 else alpha * source)


def _one_hot(x: Any, num_classes: int = -1) -> Any:
    return jax.nn.one_hot(x, num_classes, dtype=jnp.int32)


def _same(x: Any, *_: Any) -> Any:
    return x


MAKING: dict[str, Callable[..., Any]] = {
    "arange": _arange,
    "full": _full,
    "zeros": _full,
    "empty": _full,
    "ones": lambda size, *, dtype=None: _full(size, 1, dtype=dtype),
    "scalar_tensor": lambda value, *, dtype=None: jnp.asarray(value, dtype or jnp.float32),
    "full_like": _like,
    "zeros_like": _like,
    "empty_like": _like,
    "ones_like": lambda x, *, dtype=None: _like(x, 1, dtype=dtype),
    "new_full": _new,
    "new_zeros": _new,
    "new_empty": _new,
    "new_ones": lambda x, size, *, dtype=None: _new(x, size, 1, dtype=dtype),
    "one_hot": _one_hot,
    "tril": jnp.tril,
    "triu": jnp.triu,
}
"""Operators whose results have only numbers that the operator itself says, or zeros in the place of some."""

VIEWS: dict[str, Callable[..., Any]] = {
    "alias": _same,
    "contiguous": _same,
    "detach": jax.lax.stop_gradient,
    "to": _to,
    "type_as": _to,
    "view": jnp.reshape,
    "view_as": lambda x, other: x.reshape(other.shape),
    "reshape": jnp.reshape,
    "flatten": _flatten,
    "unflatten": _unflatten,
    "transpose": jnp.swapaxes,
    "t": jnp.transpose,
    "numpy_T": jnp.transpose,
    "mT": jnp.matrix_transpose,
    "permute": jnp.transpose,
    "movedim": jnp.moveaxis,
    "unsqueeze": jnp.expand_dims,
    "squeeze": _squeeze,
    "expand": _expand,
    "expand_as": lambda x, other: _expand(x, other.shape),
    "broadcast_tensors": lambda arrays: list(jnp.broadcast_arrays(*arrays)),
    "split": _split,
    "split_with_sizes": _split,
    "chunk": _chunk,
    "unbind": _unbind,
    "slice": _slice,
    "select": _select,
    "narrow": lambda x, dim, start, length: _slice(x, dim, start, start + length),
    "getitem": lambda results, n: results[n],
}
"""Operators whose results may share memory with their first operand."""

COPIES: dict[str, Callable[..., Any]] = {
    "clone": _same,
    "lift_fresh_copy": _same,
    "copy": lambda x, source, non_blocking=False: jnp.broadcast_to(source.astype(x.dtype), x.shape),
    "fill": lambda x, value: jnp.broadcast_to(jnp.asarray(value, x.dtype), x.shape),
    "_to_copy": _to,
    "slice_scatter": _slice_scatter,
    "select_scatter": _select_scatter,
    "repeat": _repeat,
    "repeat_interleave": _repeat_interleave,
    "cat": _cat,
    "stack": jnp.stack,
    "pad": _pad,
    "roll": _roll,
    "flip": jnp.flip,
    "index": lambda x, indices: x[_places(indices)],
    "index_select": lambda x, dim, index: jnp.take(x, index, dim, mode="clip"),
    "index_put": _index_put,
    "index_add": _index_add,
    "gather": _gather,
    "scatter": _scatter,
    "scatter_add": _scatter_add,
}
"""Operators that move elements to an array of their own."""
