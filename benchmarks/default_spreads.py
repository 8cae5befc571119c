"""How far the planner's null models are off, of what they are taken to be off where no model says how sure it is.

    python benchmarks/default_spreads.py --train ../shared/data

A group (a GPU; a mesh, or a group size) is left out in turn, and the middle of the others' errors is taken off: what is
left is its own. The errors that a group has in common, and those of its rows, are printed as standard deviations of
logarithms; `alpa_dejavu/planning/uncertainty/_spreads.py` has them.

Products of a kind that was never measured (as convolutions are) go by the model of those that were: leaving out linear
layers, or batched products, shows how far that is off. Products in half precision go by their rate, as if they were in
single precision: the one GPU where both were measured shows how far that is off. `LearnedLatency` has these two.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from alpa_dejavu.calibration import bundled
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.communication import AlphaBeta, Group
from alpa_dejavu.costs.latency.learned import KernelModel, Kernels, data_sheets
from alpa_dejavu.problem import Cluster
from bundles._devices import BUNDLES
from bundles._products import product_ratios
from harness import Results, Table, options
from trials import collectives, layer_profiles
from trials._folder import Folder
from trials._trial_set import MEASURED_S, Context

_LEAST_S = 1e-3
"""Layers spend their time in large kernels; the shortest are but the launch of a kernel from Python."""
_EXCHANGES = 4
"""A block sums its result over its devices twice in the forward pass and twice in the backward pass."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = options(__doc__)
    parser.add_argument("--train", type=Path, required=True, help="the folder of measurements")
    given = parser.parse_args(arguments)
    folder, rows = Folder(given.train), []
    kinds = [*_kernels(folder), *_kinds(folder), *_dtypes(folder), *_collectives(folder), *_doublings(folder)]
    for name, log_errors, groups in kinds:
        common, own = left_out_spread(log_errors, groups)
        spreads = {"common": common, "own": own}
        rows.append({"class": name, "rows": len(log_errors), "groups": int(groups.nunique()), **spreads})
    columns = {"class": "{class}", "rows": "{rows}", "groups": "{groups}", "common": "{common:.3f}", "own": "{own:.3f}"}
    return Results(given.json, classes=rows).shown(Table.of(rows, columns))


def left_out_spread(log_errors: pd.Series, groups: pd.Series) -> tuple[float, float]:
    """Standard deviations: of what a group has in common around the middle of the others, and of rows in a group.

    >>> left_out_spread(pd.Series([0.0, 2.0, 4.0, 6.0]), pd.Series(["a", "a", "b", "b"]))
    (4.0, 1.0)
    """
    means = log_errors.groupby(groups).mean()
    others = (means.sum() - means) / max(len(means) - 1, 1)
    within = log_errors - groups.map(means)
    return float(np.sqrt(((means - others) ** 2).mean())), float(np.sqrt((within**2).mean()))


def _kernels(folder: Folder) -> list[tuple[str, pd.Series, pd.Series]]:
    rows = pd.read_csv(folder.path / "neusight-kernels/kernels.csv")
    sheets = data_sheets(folder.document("neusight-kernels/gpus.json"))
    columns = Kernels.of(rows, sheets)
    rows["log_error"] = np.log(rows["latency_s"] / np.maximum(columns.compute_s, columns.traffic_s))
    rows["class"] = np.where(columns.kind == "product", "products", "other operators")
    rows = rows[rows["latency_s"] > _LEAST_S]
    return [(str(name), part["log_error"], part["gpu"]) for name, part in rows.groupby("class")]


def _kinds(folder: Folder) -> list[tuple[str, pd.Series, pd.Series]]:
    rows = pd.read_csv(folder.path / "neusight-kernels/kernels.csv")
    rows = rows[rows["op"].isin(["linear", "bmm"])]
    sheets, found = data_sheets(folder.document("neusight-kernels/gpus.json")), []
    for op, out in rows.groupby("op"):
        others = rows[rows["op"] != op]
        model = KernelModel().fit(Kernels.of(others, sheets), others["latency_s"])
        long = out[out["latency_s"] > _LEAST_S]
        off = np.log(long["latency_s"] / model.predict(Kernels.of(long, sheets)).mean)
        found.append((off, long["gpu"] + f" {op}"))
    log_errors, groups = (pd.concat(each) for each in zip(*found, strict=True))
    return [("products of a kind left out", log_errors, groups)]


def _dtypes(folder: Folder) -> list[tuple[str, pd.Series, pd.Series]]:
    machine = next(bundle.products for bundle in BUNDLES if bundle.name == "v100")
    assert machine is not None, "products were measured there"
    ratios = product_ratios(bundled("v100"), machine, folder)
    by_flop = {dtype: pd.Series(ratio, index=flop) for dtype, flop, ratio in ratios}
    log_errors = np.log(by_flop["float16"] / by_flop["float32"]).dropna()
    return [("products in half precision", log_errors, pd.Series(machine, index=log_errors.index))]


def _collectives(folder: Folder) -> list[tuple[str, pd.Series, pd.Series]]:
    rows = collectives.load(folder)
    cluster = named_cluster("p3.16xlarge", 4)
    rows["log_error"] = np.log(rows[MEASURED_S] / [_seconds(row, cluster) for _, row in rows.iterrows()])
    found = []
    for inside, place, group in ((True, "within hosts", "mesh"), (False, "between hosts", "group_size")):
        part = rows[(rows["hosts"] == 1) == inside]
        found.append((f"collectives {place}", part["log_error"], part[group].astype(str)))
    return found


def _doublings(folder: Folder) -> list[tuple[str, pd.Series, pd.Series]]:
    """Errors of blocks on several devices, given those on one and the links: by doubling of the number of devices."""
    rows = layer_profiles.SETS[0].load(folder)
    blocks = layer_profiles.blocks_of(rows, Context(folder, {}))
    rows["sent_s"] = _EXCHANGES * blocks.exchange_s
    rows = rows[~blocks.is_head & (rows["layer"] > 0)]
    names = ["model", "gpu", "micro_batch", "layer"]
    alone = rows[rows["tp"] == 1].set_index(names)[MEASURED_S]
    rows["alone_s"] = alone.reindex(pd.MultiIndex.from_frame(rows[names])).to_numpy()
    rows = rows[(rows["tp"] > 1) & rows["alone_s"].notna()]
    log_errors = np.log(rows[MEASURED_S] / (rows["alone_s"] / rows["tp"] + rows["sent_s"]))
    return [("doublings of a stage's devices", log_errors / np.log2(rows["tp"]), rows["gpu"])]


def _seconds(row: pd.Series, cluster: Cluster) -> float:
    per_host = int(row["mesh"].split("x")[1])
    hosts = tuple(device // per_host for device in json.loads(row["replica_groups"])[0])
    size = row["num_bytes"] / (len(hosts) if row["collective"] == "all_to_all" else 1)
    return float(AlphaBeta().seconds(row["collective"], size, Group(cluster, hosts, concurrent=int(row["sharing"]))))


if __name__ == "__main__":
    raise SystemExit(main())
