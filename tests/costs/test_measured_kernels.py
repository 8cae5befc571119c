"""Products that were measured on an H100 and an H200, neither of which any model was fitted to, beside predictions."""

import json
from pathlib import Path

import numpy as np
import pytest

from alpa_dejavu.clusters.gpus import gpu_of
from alpa_dejavu.costs.latency import AnalyticLatency, KernelLatency
from alpa_dejavu.problem import Operator, Operators

MEASURED = Path(__file__).resolve().parents[2] / "benchmarks" / "measured"
LONG_S, ALIGNED = 3e-5, 8


def long_products(rows):
    """Long products in half precision whose sides tensor cores take as they are, and their seconds in a CUDA graph."""
    found = []
    for op, mode, seconds, batch, *sides in zip(*(rows[key] for key in KEYS), strict=True):
        if op == "linear" and mode == "bfloat16" and seconds > LONG_S and not any(side % ALIGNED for side in sides):
            found.append((product(batch, *sides), seconds))
    return found


KEYS = ("op", "mode", "kernel_s", "batch", "m", "n", "k")


def product(batch, m, n, k):
    shapes, moved = ((m, k), (k, n)), 2.0 * batch
    return Operator(
        "dot", "dot_general", shapes, ((m, n),), "bfloat16", 2.0 * m * n * k, 0, moved * (m * k + k * n), moved * m * n
    )


@pytest.mark.parametrize(("file", "gpu", "most"), [("h100", "H100-SXM-80GB", 0.1), ("h200", "H200-SXM-141GB", 0.15)])
def test_long_products_are_nearer_than_by_the_data_sheet(file, gpu, most):
    rows = json.loads((MEASURED / f"{file}_kernels.json").read_text())["rows"]
    records, seconds = zip(*long_products(rows), strict=True)
    assert len(seconds) >= 30
    off = {}
    for model in (KernelLatency(), AnalyticLatency()):
        predicted = model.predict(Operators.of(list(records)), gpu_of(gpu).device()).mean_s
        off[type(model)] = float(np.median(np.abs(predicted / np.array(seconds) - 1)))
    assert off[KernelLatency] < most < off[AnalyticLatency]
