"""What the package's files say of fits without a whole GPU, and without a quarter of the shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from alpa_dejavu.costs.communication._nccl import FILE
from alpa_dejavu.costs.kernels import Fitted, kernel_figures

__all__ = ["shipped_errors"]

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
