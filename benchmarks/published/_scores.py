"""The figures by which predictions are judged: how near they are, how often intervals hold, and how wide these are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu.costs.communication._nccl import FILE
from alpa_dejavu.costs.kernels import Fitted, kernel_figures

_NEAR = 0.2


def scored(
    predicted: ArrayLike,
    measured: ArrayLike,
    ends: tuple[ArrayLike, ArrayLike] | None = None,
    fits: Sequence[bool] | None = None,
) -> dict[str, Any]:
    """How near predictions are to measurements.

    Args:
        ends: the ends of each prediction's 90 % interval; None: there are none.
        fits: whether each row is said to fit its devices' memory; None: that isn't asked.

    Returns:
        `rows`; the median of absolute relative errors, `median_error`, and the greatest, `worst`; the median of
        relative errors, `bias`; the share within 20 %, `within_20`; the share inside of intervals, `inside`, and the
        median of upper over lower ends, `interval_factor`; the share that fits, `fits`.
    """
    real = np.asarray(measured, dtype=np.float64)
    errors = np.asarray(predicted, dtype=np.float64) / real - 1
    figures: dict[str, Any] = {
        "rows": len(errors),
        "median_error": _median(np.abs(errors)),
        "worst": float(np.abs(errors).max()) if len(errors) else None,
        "bias": _median(errors),
        "within_20": float((np.abs(errors) <= _NEAR).mean()) if len(errors) else None,
    }
    if ends is not None:
        lower, upper = (np.asarray(end, dtype=np.float64) for end in ends)
        figures["inside"] = float(((lower <= real) & (real <= upper)).mean()) if len(errors) else None
        figures["interval_factor"] = _median(upper / lower)
    if fits is not None:
        figures["fits"] = float(np.mean(fits)) if len(errors) else None
    return figures


def by_source(
    sources: Sequence[str],
    predicted: ArrayLike,
    measured: ArrayLike,
    ends: tuple[ArrayLike, ArrayLike] | None = None,
    fits: Sequence[bool] | None = None,
) -> dict[str, Any]:
    """The figures of all rows, and under `by_source` those of each source's."""
    names, rows = np.array(sources), [np.asarray(column) for column in (predicted, measured)]
    parts = {}
    for name in dict.fromkeys(sources):
        own = names == name
        some = None if ends is None else (np.asarray(ends[0])[own], np.asarray(ends[1])[own])
        kept = None if fits is None else [fit for fit, mine in zip(fits, own, strict=True) if mine]
        parts[name] = scored(rows[0][own], rows[1][own], some, kept)
    return {**scored(predicted, measured, ends, fits), "by_source": parts}


def _median(values: NDArray[np.float64]) -> float | None:
    return float(np.median(values)) if len(values) else None


_DTYPES = {"half": "bfloat16", "float8": "float8"}
_ERRORS = ("gpu", "shapes", "sheets")


def shipped_errors() -> list[dict[str, Any]]:
    """Rows with `kind`, what the errors are `of`, and median errors: `gpu`, `shapes`, and by data sheets `sheets`.

    Single precision isn't among them: nobody trains today's transformers in it.
    """
    known = kernel_figures()
    held = json.loads(FILE.read_text(encoding="utf-8"))["held_out"]
    return [
        *(_row("products", f"products, {name}", known.products[dtypes]) for dtypes, name in _DTYPES.items()),
        _row("attention", "fused attention, forward", known.attention),
        *(_row("experts", f"experts, {name}", known.grouped[dtypes]) for dtypes, name in _DTYPES.items()),
        *_collectives(held),
    ]


def _row(kind: str, of: str, figures: Fitted[Any]) -> dict[str, Any]:
    errors = figures.gpu.median_error, figures.shapes.median_error, figures.gpu.sheets
    return {"kind": kind, "of": of, **dict(zip(_ERRORS, errors, strict=True))}


def _collectives(held: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for of, more in (("NVLink", ""), ("PCIe alone", " with PCIe alone")):
        gpus, shapes = held[f"gpus{more}"], held[f"shapes{more}"]
        errors = gpus["median_error"], shapes["median_error"], gpus["sheets"]
        yield {"kind": "nccl", "of": f"NCCL, {of}", **dict(zip(_ERRORS, errors, strict=True))}
