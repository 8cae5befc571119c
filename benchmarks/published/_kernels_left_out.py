"""The fits of all kinds of kernels, with and without the kernels of a GPU or a quarter of the shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.normal import REACH_90
from alpa_dejavu.clusters.gpus import Gpu
from alpa_dejavu.costs.kernels import (
    AttentionFigures,
    ExpertFigures,
    GroupedFigures,
    LeftOut,
    ProductFigures,
    StreamFigures,
    family,
)
from published import _kernel_rows as rows_of
from published._kernel_fit import fit
from published._kernel_rows import Measured

__all__ = [
    "Fitter", "Predicted", "both_left_out", "errors_of", "experts_left_out", "fit_attention", "fit_grouped",
    "fit_streams", "fitter_of_products", "predicted",
]  # fmt: skip

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Fitter: TypeAlias = Callable[[Sequence[Measured], "Sequence[Mask] | None"], Mapping[str, Any]]
"""Fits figures to measured kernels, all or those of masks; returns them by generation and family."""
_FOLDS = 4
"""The part of the shapes that is left out: one of so many."""
_MIXED = 2654435761
"""A multiplier that scatters consecutive numbers over all bits."""
_UNKNOWN = LeftOut(0.5, 0.4, 0.4, 1.0)
"""The errors that are assumed where nothing could be left out."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Predicted:
    """Measured kernels with what was predicted of them.

    Attributes:
        measured_s, sheet_s: the measured ones, and those by the data sheet, shape (kernels,).
        spread: how far they are off: standard deviations of the logarithm, in common and a kernel's own.
    """

    gpu: str
    seconds: Array
    measured_s: Array
    sheet_s: Array
    spread: tuple[float, float] = (0.0, 0.0)

    @property
    def off(self) -> Array:
        """The logarithms of predicted over measured seconds."""
        return np.asarray(np.log(self.seconds / self.measured_s))

    @property
    def reach(self) -> float:
        """The factor by which the ends of the 90 % interval are off the prediction."""
        return float(np.exp(REACH_90 * np.hypot(*self.spread)))


def predicted(
    measured: Measured, figures: Any, spread: tuple[float, float] = (0.0, 0.0), chosen: Mask | None = None
) -> Predicted:
    """The predictions of measured kernels by figures, of all or those of a mask."""
    mask = np.ones(len(measured.measured_s), dtype=np.bool_) if chosen is None else chosen
    seconds = measured.seconds(figures, mask)
    return Predicted(measured.gpu.name, seconds, measured.measured_s[mask], measured.sheet_s[mask], spread)


def fit_attention(measured: Sequence[Measured], chosen: Sequence[Mask] | None = None) -> dict[str, AttentionFigures]:
    """The figures of attention by generation and family, fitted to all kernels or those of masks."""
    return fit(AttentionFigures, rows_of.ATTENTION, _kernels(measured, chosen), rows_of.NOISE["attention"])


def fit_streams(measured: Sequence[Measured], chosen: Sequence[Mask] | None = None) -> dict[str, StreamFigures]:
    """Likewise those of streams."""
    return fit(StreamFigures, rows_of.STREAMS, _kernels(measured, chosen), rows_of.NOISE["streams"])


def fitter_of_products(dtypes: str, more: Sequence[Measured] = ()) -> Fitter:
    """A fitter of products in a class of dtypes; `more` takes part in all its fits.

    It keeps the fits to all shapes: those without a GPU serve its products and its experts.
    """
    noise = rows_of.NOISE["float32" if dtypes == "float32" else "products"]
    kept: dict[tuple[str, ...], dict[str, ProductFigures]] = {}

    def fitted(measured: Sequence[Measured], chosen: Sequence[Mask] | None = None) -> dict[str, ProductFigures]:
        names = tuple(each.gpu.name for each in measured)
        if chosen is None and names in kept:
            return kept[names]
        kernels = [*_kernels(measured, chosen), *_kernels(more, None)]
        figures = fit(ProductFigures, rows_of.PRODUCTS[dtypes], kernels, noise)
        if chosen is None:
            kept[names] = figures
        return figures

    return fitted


def fit_grouped(
    measured: Sequence[Measured],
    products: Mapping[str, ProductFigures],
    streams: Mapping[str, StreamFigures],
    chosen: Sequence[Mask] | None = None,
) -> dict[str, GroupedFigures]:
    """Those of grouped products, which go by the figures of products and streams."""

    def given(gpu: Gpu) -> Callable[[GroupedFigures], ExpertFigures]:
        return lambda grouped: ExpertFigures(grouped, _of(products, gpu), _of(streams, gpu))

    masks: Sequence[Mask | None] = chosen or [None] * len(measured)
    kernels = [each.kernels(mask, given) for each, mask in zip(measured, masks, strict=True)]
    return fit(GroupedFigures, rows_of.GROUPED, kernels, rows_of.NOISE["grouped"], rows_of.GROUPED_APART)


def both_left_out(measured: Sequence[Measured], fitter: Fitter) -> tuple[list[Predicted], list[Predicted]]:
    """Predictions of each GPU by fits without it, and of each quarter of shapes by fits without them."""
    gpus, shapes = [], []
    for outside in measured:
        rest = [each for each in measured if each.gpu != outside.gpu]
        if rest:
            gpus.append(predicted(outside, _of(fitter(rest, None), outside.gpu)))
    for fold in range(_FOLDS):
        kept = [_fold(each) != fold for each in measured]
        figures = fitter(measured, kept)
        shapes += [
            predicted(each, _of(figures, each.gpu), chosen=~mask) for each, mask in zip(measured, kept, strict=True)
        ]
    return gpus, shapes


def experts_left_out(
    layers: Sequence[Measured], products: Sequence[Measured], fitter: Fitter, streams: Mapping[str, StreamFigures]
) -> tuple[list[Predicted], list[Predicted]]:
    """Likewise of layers of experts: the products of a GPU that is left out take no part either."""
    gpus, shapes = [], []
    for outside in layers:
        rest = [each for each in layers if each.gpu != outside.gpu]
        others = [each for each in products if each.gpu != outside.gpu]
        if rest and others:
            of_products = fitter(others, None)
            parts = fit_grouped(rest, of_products, streams), of_products, streams
            gpus.append(predicted(outside, _expert_figures(parts, outside.gpu)))
    of_products = fitter(products, None) if layers else {}
    for fold in range(_FOLDS if layers else 0):
        kept = [_fold(each) != fold for each in layers]
        parts = fit_grouped(layers, of_products, streams, kept), of_products, streams
        shapes += [
            predicted(each, _expert_figures(parts, each.gpu), chosen=~mask)
            for each, mask in zip(layers, kept, strict=True)
        ]
    return gpus, shapes


def errors_of(parts: Sequence[Predicted]) -> LeftOut:
    """The errors of what was left out: what the kernels of a GPU have in common is their middle."""
    names = dict.fromkeys(part.gpu for part in parts if len(part.seconds))
    if not names:
        return _UNKNOWN
    off = [np.concatenate([part.off for part in parts if part.gpu == name]) for name in names]
    middle = [float(np.median(each)) for each in off]
    own = np.concatenate([np.abs(each - center) for each, center in zip(off, middle, strict=True)])
    return LeftOut(
        median_error=float(np.median(np.abs(np.expm1(np.concatenate(off))))),
        common=float(np.sqrt(np.mean(np.square(middle)))),
        own=float(np.quantile(own, 0.9)) / REACH_90,
        sheets=float(np.median(np.concatenate([np.abs(part.sheet_s / part.measured_s - 1) for part in parts]))),
    )


def _expert_figures(parts: tuple[Mapping[str, Any], ...], gpu: Gpu) -> ExpertFigures:
    return ExpertFigures(*(_of(part, gpu) for part in parts))


def _kernels(measured: Sequence[Measured], chosen: Sequence[Mask] | None) -> list[Any]:
    masks: Sequence[Mask | None] = chosen or [None] * len(measured)
    return [each.kernels(mask) for each, mask in zip(measured, masks, strict=True)]


def _of(figures: Mapping[str, Any], gpu: Gpu) -> Any:
    return figures.get(gpu.generation, figures[family(gpu.generation)])


def _fold(measured: Measured) -> NDArray[np.intp]:
    """To which quarter of the shapes each kernel belongs: neighbours among them to different ones."""
    return np.asarray((measured.shapes * _MIXED >> 16) % _FOLDS)
