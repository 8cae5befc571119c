"""Made-up measurements, and models that are quickly fitted to them."""

import functools

import numpy as np
import pandas as pd

from alpa_dejavu.calibration import Calibration, Fit, MeasuredLink
from alpa_dejavu.costs.communication.learned import Collectives, FittedCollectives
from alpa_dejavu.costs.latency.learned import BlockModel, Blocks, DataSheet, KernelModel, Kernels, ProductCurve
from alpa_dejavu.costs.memory_margin import MemoryResiduals
from alpa_dejavu.problem import Device, Link, SmallProducts
from alpa_dejavu.testing import example_cluster

SHEETS = {
    "small": DataSheet(5e12, 2e11, 40, 2e6),
    "middle": DataSheet(8e12, 4e11, 60, 4e6, 100.0, 12.0),
    "example": DataSheet(1e12, 1e11, 16, 2e6),
}
EXAMPLE = example_cluster()


def kernels(count, seed, gpus=("small", "middle")):
    rng = np.random.default_rng(seed)
    op = rng.choice(["linear", "bmm", "relu", "softmax"], count)
    product = np.isin(op, ["linear", "bmm"])
    sizes = np.exp(rng.uniform(3, 7.5, (4, count))).round()
    columns = {"op": op, "gpu": rng.choice(gpus, count), "batch": np.where(op == "linear", 1, sizes[0]), "n": sizes[1]}
    return Kernels.of({**columns, "m": np.where(product, sizes[2], 1), "k": np.where(product, sizes[3], 1)}, SHEETS)


def kernel_rows(gpu, sheets, count, seed, products=1.0, others=1.0):
    """Kernels and their seconds on a GPU that reaches 0.8 of its memory and 0.7 of its rate, with 2 % of noise.

    Its products and its other kernels may take so many times as long.
    """
    rng = np.random.default_rng(seed)
    op = rng.choice(["linear", "bmm", "relu", "add", "softmax"], count)
    product = np.isin(op, ["linear", "bmm"])
    size = np.exp(rng.uniform(3, 7.5, (4, count))).round()
    rows = pd.DataFrame({"op": op, "gpu": gpu, "batch": np.where(op == "linear", 1, size[0])})
    rows["n"] = size[1]
    rows["m"], rows["k"] = np.where(product, size[2], 1), np.where(product, size[3], 1)
    kernels = Kernels.of(rows, sheets)
    work = np.maximum(kernels.traffic_s / 0.8, kernels.compute_s / 0.7 * product) * np.where(product, products, others)
    rows["latency_s"] = np.maximum(3e-5, 1e-5 + work) * np.exp(rng.normal(0, 0.02, count))
    return rows


def kernel_seconds(rows):
    work = np.maximum(rows.traffic_s / 0.8, rows.compute_s / 0.7 * (rows.kind == "product"))
    noise = np.exp(np.random.default_rng(5).normal(0, 0.02, len(rows)))
    return np.maximum(3e-5, 1e-5 + work) * noise


def kernel_model():
    rows = kernels(500, 0)
    return KernelModel().fit(rows, kernel_seconds(rows))


def collectives(hosts, sizes=(2.0, 4.0, 8.0)):
    names = ("all_gather", "all_reduce")
    grid = [(name, 2.0**power, size) for name in names for size in sizes for power in range(10, 31, 2)]
    name, num_bytes, size = (np.array(each) for each in zip(*grid, strict=True))
    same = np.ones(len(grid))
    return Collectives(name, num_bytes, size, hosts * same, (1 if hosts == 1 else 2) * same, 1e10 * same)


def collective_model(hosts):
    rows = collectives(hosts)
    between, within = rows.hops
    return FittedCollectives().fit(rows, 5e-5 + 1e-4 * between + 2e-5 * within + rows.volume_s / 0.8, rows.size)


def blocks(count, seed):
    rng = np.random.default_rng(seed)
    ways = rng.choice([1.0, 2.0, 4.0], count)
    return Blocks(
        gpu=rng.choice(["one", "two"], count),
        is_head=rng.random(count) < 0.2,
        products_s=np.exp(rng.uniform(-7, -2, count)),
        traffic_s=np.exp(rng.uniform(-9, -5, count)),
        exchange_s=np.where(ways > 1, np.exp(rng.uniform(-9, -5, count)), 0.0),
        messages=ways - 1,
        through_host=rng.random(count) < 0.5,
        tensor_cores=rng.random(count) < 0.5,
    )


def block_model():
    rows = blocks(100, 0)
    return BlockModel().fit(rows, 1.5 * rows.products_s + 9 * rows.traffic_s + 1e-3, rows.gpu)


@functools.cache
def fitted():
    """A calibration with models alone, as bundled ones are."""
    return Calibration(
        name="made-up",
        origin="nothing that was measured",
        date="2024-05-31",
        sheets={"example": SHEETS["example"]},
        kernels=kernel_model(),
        products={"example": {"float32": ProductCurve(0.5, -0.1, 0.01, 1e9, 1e12)}},
        layers=block_model(),
        within=collective_model(1.0),
        across=collective_model(2.0),
        fits=(Fit("kernels", "made up", 500, "gpu", {"mape": 0.125, "coverage_90": 0.9}, {"launch_s": 3e-5}),),
        missing=("collectives: no all-to-all was measured",),
    )


def measured():
    """A calibration with figures alone, as a cluster's is."""
    device = Device(
        "example", 1e9, {"float32": 5e11, "float16": 8e11}, 4e11, 5e10, small_products=SmallProducts(1e6, 0.5)
    )
    return Calibration(
        name="cluster",
        origin="made up",
        date="2024-05-31",
        devices={"example": device},
        device_spread={"example": {"memory_bytes_per_s": 0.1, "flop_per_s[float32]": 0.05}},
        links=(
            MeasuredLink(("example", "example"), True, Link(2e-5, 5e9, pair_bytes_per_s=1e9), {"bytes_per_s": 0.2}),
            MeasuredLink(("example", "example"), False, Link(3e-4, 4e8, send_latency_s=1e-3)),
        ),
        memory=MemoryResiduals({"peak": (0.05, -0.02, 0.01)}, 3, "made-up peaks", "another framework"),
    )
