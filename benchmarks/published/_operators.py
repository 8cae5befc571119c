"""Measured kernels beside what the package's models of them say: fitted to them, and without them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from alpa_dejavu.costs.kernels import ExpertFigures, Fitted, KernelFigures, kernel_figures
from published import _kernel_rows as rows_of
from published._kernel_rows import Measured
from published._kernels_left_out import (
    Fitter,
    Predicted,
    both_left_out,
    errors_of,
    experts_left_out,
    fit_attention,
    fit_grouped,
    fit_streams,
    fitter_of_products,
    predicted,
)
from published._scores import by_source

__all__ = ["KINDS", "Training", "fitted", "judged_operators", "left_out", "training"]

KINDS = ("products", "attention", "experts")


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """The measured kernels that figures are fitted to, by kind."""

    products: Sequence[Measured]
    attention: Sequence[Measured]
    experts: Sequence[Measured]
    vector_products: Sequence[Measured] = ()
    streams: Sequence[Measured] = ()
    v100_products: Sequence[Measured] = ()

    def of_class(self, dtypes: str) -> tuple[list[Measured], list[Measured], Fitter]:
        """The products and the layers of experts in a class of dtypes, and the fitter of these products."""
        products = [each for each in (*self.products, *self.vector_products) if each.dtypes == dtypes]
        layers = [each for each in self.experts if each.dtypes == dtypes]
        return products, layers, fitter_of_products(dtypes, self.more(dtypes))

    def more(self, dtypes: str) -> Sequence[Measured]:
        """The products in a class of dtypes that take part in each fit, and are never left out."""
        return self.v100_products if dtypes == "half" else ()


def training(operators: Path, train: Path | None = None) -> Training:
    """The kernels of a folder with gemm.csv, attention.csv and moe.csv, and those of a folder of other measurements.

    Raises:
        FileNotFoundError: a file isn't there.
        ValueError: it is broken, or has a GPU whose data sheet isn't known.
    """
    own = rows_of.products(operators), rows_of.attention(operators), rows_of.experts(operators)
    if train is None:
        return Training(*own)
    others = rows_of.vector_products(train), rows_of.streams(train), rows_of.v100_products(train)
    return Training(*own, *others)


def fitted(measured: Training) -> KernelFigures:
    """All figures, fitted to all measured kernels, with their errors on what was left out of other fits."""
    streams = _fitted(measured.streams, fit_streams)
    products, grouped = {}, {}
    for dtypes in dict.fromkeys(each.dtypes for each in (*measured.products, *measured.vector_products)):
        own, layers, fitter = measured.of_class(dtypes)
        products[dtypes] = _fitted(own, fitter, measured.more(dtypes))
        if layers:
            figures = fit_grouped(layers, products[dtypes].figures, streams.figures)
            errors = experts_left_out(layers, own, fitter, streams.figures)
            grouped[dtypes] = Fitted(figures, _names(layers), *map(errors_of, errors))
    return KernelFigures(products, _fitted(measured.attention, fit_attention), grouped, streams)


def judged_operators(folder: Path, figures: KernelFigures | None = None) -> dict[str, dict[str, Any]]:
    """How near the package's figures, or given ones, come to a folder's gemm.csv, attention.csv and moe.csv.

    A GPU that wasn't measured goes by the figures of its generation, or else by those that generations have in common.

    Returns:
        Under "products", "attention" and "experts" the figures of `by_source` by GPU, and under `sheets` the median
        error of the data sheets.

    Raises:
        FileNotFoundError: a file isn't there.
        ValueError: it is broken, or has a GPU whose data sheet isn't known.
    """
    known, measured = kernel_figures() if figures is None else figures, training(folder)
    parts: dict[str, list[Predicted]] = {kind: [] for kind in KINDS}
    for each in measured.products:
        products = known.products[each.dtypes]
        parts["products"].append(predicted(each, products.of(each.gpu), products.spread(each.gpu)))
    for each in measured.attention:
        parts["attention"].append(predicted(each, known.attention.of(each.gpu), known.attention.spread(each.gpu)))
    for each in measured.experts:
        grouped, products = known.grouped[each.dtypes], known.products[each.dtypes]
        of_layers = ExpertFigures(grouped.of(each.gpu), products.of(each.gpu), known.streams.of(each.gpu))
        parts["experts"].append(predicted(each, of_layers, grouped.spread(each.gpu)))
    return {kind: _judged(some) for kind, some in parts.items()}


def left_out(operators: Path, train: Path | None = None) -> dict[str, dict[str, Any]]:
    """How near the models come to what is left out of their fit.

    Returns:
        Under `gpus`, each GPU left out in turn, and under `shapes`, a quarter of the shapes of all GPUs left out in
        turn, what `judged_operators` returns. Intervals are by these errors themselves.
    """
    measured = training(operators, train)
    streams, turns = fit_streams(measured.streams), ("gpus", "shapes")
    parts: dict[str, dict[str, list[Predicted]]] = {turn: {kind: [] for kind in KINDS} for turn in turns}
    for dtypes in dict.fromkeys(each.dtypes for each in measured.products):
        own, layers, fitter = dataclasses.replace(measured, vector_products=()).of_class(dtypes)
        errors = both_left_out(own, fitter), experts_left_out(layers, own, fitter, streams)
        for place, turn in enumerate(turns):
            parts[turn]["products"] += errors[0][place]
            parts[turn]["experts"] += errors[1][place]
    for turn, some in zip(turns, both_left_out(measured.attention, fit_attention), strict=True):
        parts[turn]["attention"] += some
    return {
        turn: {kind: _judged(_by_their_errors(some)) for kind, some in kinds.items()} for turn, kinds in parts.items()
    }


def _fitted(measured: Sequence[Measured], fitter: Fitter, more: Sequence[Measured] = ()) -> Fitted[Any]:
    figures = fitter(measured, None)
    return Fitted(figures, _names([*measured, *more]), *map(errors_of, both_left_out(measured, fitter)))


def _names(measured: Sequence[Measured]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.gpu.name for each in measured))


def _by_their_errors(parts: Sequence[Predicted]) -> list[Predicted]:
    errors = errors_of(parts)
    return [dataclasses.replace(part, spread=(errors.common, errors.own)) for part in parts]


def _judged(parts: Sequence[Predicted]) -> dict[str, Any]:
    """The figures of all, by GPU; and the median error of the data sheets."""
    if not parts:
        return by_source([], [], []) | {"sheets": None}
    seconds, measured_s, sheet_s = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("seconds", "measured_s", "sheet_s")
    )
    reach = np.concatenate([np.full(len(part.seconds), part.reach) for part in parts])
    names = list(itertools.chain.from_iterable([part.gpu] * len(part.seconds) for part in parts))
    sheets = float(np.median(np.abs(sheet_s / measured_s - 1)))
    return by_source(names, seconds, measured_s, (seconds / reach, seconds * reach)) | {"sheets": sheets}
