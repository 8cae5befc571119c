"""What is done to a result of the loss, so that adding it up over micro-batches gives the batch's."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import dtypes, lax

from alpa_stock_jax._batch_relation import Pair, Relation
from alpa_stock_jax._folded_keys import KEY_RESULT

__all__ = ["LOSS", "Result", "result"]

_log = logging.getLogger(__name__)

LOSS = "the loss"
_WAYS_OUT = (
    "train with one micro-batch, or compute what is divided by from the batch alone, or return values of each sample; "
    "where you know that averaging or adding up micro-batches is right, say so by "
    'DejavuStageOption(accumulate="mean") or "sum"'
)
_JOINED: dict[str, Callable[..., Any]] = {"max": jnp.max, "min": jnp.min, "and": jnp.all, "or": jnp.any}


@dataclasses.dataclass(frozen=True)
class Result:
    """What is done to a result, which Alpa adds up over micro-batches and divides by their number.

    Whole numbers are added up and not divided.

    Attributes:
        before: takes a micro-batch's value and the micro-batch's number, and gives what is added up; None: the value.
        after: takes what came out, and gives the batch's value; None: it is that.
        needs_number: whether `before` needs the micro-batch's number.
    """

    before: Callable[[Any, Any], Any] | None = None
    after: Callable[[Any], Any] | None = None
    needs_number: bool = False


def result(
    name: str, relation: Relation, pair: Pair, dtype: Any, number: int, accumulate: str | None, told: set[str]
) -> Result:
    """What is done to a result.

    Args:
        name: what it is called.
        relation: how a micro-batch's value is related to the batch's.
        pair: its shapes.
        dtype: its type.
        number: of micro-batches.
        accumulate: what is done where the relation isn't known: "mean", "sum", or None for "mean" with a warning.
        told: the reasons of which a warning was given; this one is put to them.

    Raises:
        ValueError: a result that isn't known can't be averaged either.
        NotImplementedError: a result is a key.
    """
    if jnp.issubdtype(dtype, dtypes.extended):
        raise NotImplementedError(KEY_RESULT)
    if name == LOSS and relation.kind != "unknown" and not (relation.is_sum or relation.kind == "same"):
        reason = f"it is the {relation.op} over the batch ({relation.reason})"
        relation = dataclasses.replace(relation, kind="unknown", reason=reason)
    exact = dtype == np.bool_ or np.issubdtype(dtype, np.integer)
    if relation.kind in ("unknown", "index"):
        return _unknown(name, relation, pair, dtype, number, accumulate, told)
    shares = 1 if exact else number
    after = _is_true if dtype == np.bool_ else None if exact else functools.partial(_multiplied, factor=number)
    if relation.kind == "rows":
        place = functools.partial(
            _place_rows, before=relation.before, shape=pair.whole, count=number, factor=relation.scale
        )
        return Result(place, after, needs_number=True)
    if relation.kind == "same":
        if exact:
            return Result(functools.partial(_only_the_first, factor=relation.scale), after, needs_number=True)
        return _scaled(relation.scale)
    if relation.is_sum:
        return _scaled(relation.scale * shares)
    place = functools.partial(_place_part, count=number, factor=relation.scale)
    return Result(place, functools.partial(_join, op=relation.op, after=after), needs_number=True)


def _unknown(
    name: str, relation: Relation, pair: Pair, dtype: Any, number: int, accumulate: str | None, told: set[str]
) -> Result:
    reason = relation.reason or "it counts samples within the batch"
    if dtype == np.bool_ or np.issubdtype(dtype, np.integer) or not pair.alike:
        raise ValueError(
            f"{name} ({dtype} of shape {pair.whole}) isn't known from {number} micro-batches, since {reason}; "
            f"{_WAYS_OUT}"
        )
    if accumulate is None and reason not in told:
        told.add(reason)
        _log.warning(
            "%s isn't known from %d micro-batches, since %s. The mean over micro-batches is taken%s. To have the "
            "batch's own: %s.", name, number, reason, ", and that of gradients" if name == LOSS else "", _WAYS_OUT,
        )  # fmt: skip
    return _scaled(number) if accumulate == "sum" else Result()


def _scaled(factor: float) -> Result:
    if math.isclose(factor, 1.0, rel_tol=1e-6):
        return Result()
    return Result(lambda value, number: _multiplied(value, factor))


def _multiplied(value: Any, factor: float) -> Any:
    return (value * (round(factor) if np.issubdtype(value.dtype, np.integer) else factor)).astype(value.dtype)


def _counted(value: Any) -> Any:
    return value.astype(np.int32) if value.dtype == np.bool_ else value


def _is_true(value: Any) -> Any:
    return value != 0


def _only_the_first(value: Any, number: Any, factor: float) -> Any:
    """The value in the first micro-batch, and 0 in the others."""
    value = _multiplied(_counted(value), factor)
    return jnp.where(number == 0, value, jnp.zeros_like(value))


def _place_rows(value: Any, number: Any, before: int, shape: tuple[int, ...], count: int, factor: float) -> Any:
    """Values of a micro-batch's samples at their place among the batch's, and 0 elsewhere."""
    parts = _multiplied(_counted(value), factor).reshape(before, -1)
    width = parts.shape[1]
    batch = jnp.zeros((before, count * width), parts.dtype)
    return lax.dynamic_update_slice(batch, parts, (jnp.int32(0), number.astype(np.int32) * width)).reshape(shape)


def _place_part(value: Any, number: Any, count: int, factor: float) -> Any:
    """A micro-batch's value at its place among those of all, and 0 elsewhere."""
    part = _multiplied(_counted(value), factor)
    mine = (jnp.arange(count) == number).reshape((count,) + (1,) * part.ndim)
    return jnp.where(mine, part[None], jnp.zeros_like(part)[None])


def _join(parts: Any, op: str, after: Callable[[Any], Any] | None) -> Any:
    return _JOINED[op](parts if after is None else after(parts), axis=0)
