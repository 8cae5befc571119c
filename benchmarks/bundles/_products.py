"""Products that were measured on the device of a known machine: how they differ from what the model of kernels says."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.calibration import Calibration, Fit
from alpa_dejavu.calibration.text import json_text
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.latency.learned import KernelModel, ProductCurve
from alpa_dejavu.problem import Operator, Operators
from trials._folder import Folder, measured

_ROWS = "alpa-p3.16xlarge/dot*.csv"
_DTYPES = {"f16": ("float16", 2), "f32": ("float32", 4)}
_LEAST_FLOP = 1e10
"""Smaller ones are launches for the most part: those of the measuring program, not of a compiled one."""


def with_products(calibration: Calibration, machine: str, folder: Folder) -> Calibration:
    """The calibration with curves of the square products that Alpa's profiler measured on a device of the machine."""
    device = named_cluster(machine).hosts[0].device
    # By the model as its file holds it: the curves are then the same wherever they are fitted.
    assert calibration.kernels is not None, "every bundle has a model of kernels"
    model = KernelModel.of_state(json.loads(json_text(calibration.kernels.state())))
    curves, errors, count = {}, [], 0
    for dtype, flop, ratio in product_ratios(dataclasses.replace(calibration, kernels=model), machine, folder):
        curves[dtype] = ProductCurve.fit(flop, ratio)
        errors.append(np.abs(np.expm1(-ProductCurve.left_out_errors(flop, ratio))))
        count += len(flop)
    off = np.concatenate(errors)
    origin = "Alpa's mesh profiler on AWS p3.16xlarge, OSDI 2022 (explcre/pipeDejavu, MIT): square products"
    held_out = {"mape": float(off.mean()), "median_ape": float(np.median(off))}
    fit = Fit("products over what kernels say", origin, count, "size", held_out)
    fits = (calibration.fits[0], fit, *calibration.fits[1:])
    return dataclasses.replace(calibration, products={device.name: curves}, fits=fits)


def product_ratios(
    calibration: Calibration, machine: str, folder: Folder
) -> Iterator[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """For each dtype the FLOP of square products that were measured on a machine's device, and their measured over
    predicted seconds by a calibration without curves of products.
    """
    rows = measured(folder.table(_ROWS, ["dtype"], ["flop", "time_s"]), ["time_s"], _ROWS)
    device = named_cluster(machine).hosts[0].device
    latency = dataclasses.replace(calibration, products={}).latency()
    for short, (dtype, width) in _DTYPES.items():
        of_dtype = rows[(rows["dtype"] == short) & (rows["flop"] >= _LEAST_FLOP)]
        flop = of_dtype["flop"].to_numpy(float)
        predicted = latency.predict(_squares(flop, dtype, width), device)
        yield dtype, flop, of_dtype["time_s"].to_numpy(float) / predicted.mean_s


def _squares(flop: NDArray[np.float64], dtype: str, width: int) -> Operators:
    sides = np.round((flop / 2) ** (1 / 3)).astype(int).tolist()
    return Operators.of(
        [
            Operator(
                "dot", "dot_general", ((n, n), (n, n)), ((n, n),), dtype, 2.0 * n**3,
                read_bytes=2.0 * width * n**2, written_bytes=1.0 * width * n**2,
            )
            for n in sides
        ]
    )  # fmt: skip
