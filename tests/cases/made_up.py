"""Made-up measurements, and models that are quickly fitted to them."""

import dataclasses
import functools

import numpy as np

from alpa_dejavu.calibration import Calibration, Fit, MeasuredLink
from alpa_dejavu.costs.communication.learned import Collectives, FittedCollectives
from alpa_dejavu.costs.latency import ProductCurve
from alpa_dejavu.costs.memory_margin import MemoryResiduals
from alpa_dejavu.problem import Device, Link, SmallProducts
from alpa_dejavu.testing import example_cluster

EXAMPLE = example_cluster()


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


@functools.cache
def fitted():
    """A calibration with models, as one beside a profiling database is."""
    return Calibration(
        name="made-up",
        origin="nothing that was measured",
        date="2024-05-31",
        devices={"example": dataclasses.replace(EXAMPLE.hosts[0].device, memory_bytes=1e9)},
        device_spread={"example": {"memory_bytes_per_s": 0.1}},
        products={"example": {"float32": ProductCurve(0.5, -0.1, 0.01, 1e9, 1e12)}},
        within=collective_model(1.0),
        across=collective_model(2.0),
        fits=(Fit("products", "made up", 500, "size", {"mape": 0.125, "coverage_90": 0.9}, {"launch_s": 3e-5}),),
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
