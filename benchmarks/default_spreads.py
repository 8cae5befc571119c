"""How far the planner's null models are off, of what they are taken to be off where no model says how sure it is.

    python benchmarks/default_spreads.py --train ../shared/data

A group (a GPU; a mesh, or a group size) is left out in turn, and the middle of the others' errors is taken off: what is
left is its own. The errors that a group has in common, and those of its rows, are printed as standard deviations of
logarithms; `alpa_dejavu/planning/uncertainty/_spreads.py` has them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.communication import AlphaBeta, Group
from alpa_dejavu.costs.latency.learned import Kernels, data_sheets
from alpa_dejavu.planning.uncertainty._spreads import USUAL_S
from alpa_dejavu.problem import Cluster
from harness import Results, Table, options
from trials import collectives, layer_profiles
from trials._folder import Folder
from trials._trial_set import MEASURED_S, Context

_LEAST_S = 1e-3
"""Layers spend their time in large kernels; the shortest are but the launch of a kernel from Python."""
_PAIRED = 800
"""So many products of a GPU are compared with each other."""
_EXCHANGES = 4
"""A block sums its result over its devices twice in the forward pass and twice in the backward pass."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = options(__doc__)
    parser.add_argument("--train", type=Path, required=True, help="the folder of measurements")
    given = parser.parse_args(arguments)
    folder, rows = Folder(given.train), []
    for name, log_errors, groups in [*_classes(folder), *_collectives(folder), *_doublings(folder)]:
        common, own = left_out_spread(log_errors, groups)
        spreads = {"common": common, "own": own}
        rows.append({"class": name, "rows": len(log_errors), "groups": int(groups.nunique()), **spreads})
    alike = {"any two": _difference(folder, divided=False), "divided otherwise": _difference(folder, divided=True)}
    shares = [{"products": name, "own": own, "alike": 1 - (own / alike["any two"]) ** 2} for name, own in alike.items()]
    columns = {"class": "{class}", "rows": "{rows}", "groups": "{groups}", "common": "{common:.3f}", "own": "{own:.3f}"}
    of_shares = {"products": "{products}", "own": "{own:.3f}", "alike": "{alike:.2f}"}
    usual_s = float(_predicted(folder)[_kernels(folder)[-1][1].index].median())
    return Results(given.json, classes=rows, shares=shares, usual_s=usual_s).shown(
        Table.of(rows, columns),
        Table.of(shares, of_shares, "One product and another on the same GPU"),
        f"The median of products takes {usual_s:.2e} s by the roofline.",
    )


def left_out_spread(log_errors: pd.Series, groups: pd.Series) -> tuple[float, float]:
    """Standard deviations: of what a group has in common around the middle of the others, and of rows in a group.

    >>> left_out_spread(pd.Series([0.0, 2.0, 4.0, 6.0]), pd.Series(["a", "a", "b", "b"]))
    (4.0, 1.0)
    """
    means = log_errors.groupby(groups).mean()
    others = (means.sum() - means) / max(len(means) - 1, 1)
    within = log_errors - groups.map(means)
    return float(np.sqrt(((means - others) ** 2).mean())), float(np.sqrt((within**2).mean()))


def _classes(folder: Folder) -> list[tuple[str, pd.Series, pd.Series]]:
    """Errors of kernels, those of products without what grows with halvings of their seconds; and that growth."""
    found = []
    for name, log_errors, gpus in _kernels(folder):
        if name == "products":
            halvings = np.log2(USUAL_S / _predicted(folder)[log_errors.index])
            pairs = {gpu: np.polyfit(halvings[errors.index], errors, 1) for gpu, errors in log_errors.groupby(gpus)}
            slopes = pd.Series({gpu: float(slope) for gpu, (slope, _) in pairs.items()})
            found.append(("halvings of a product", slopes, pd.Series(slopes.index, index=slopes.index)))
            log_errors = log_errors - gpus.map(slopes) * halvings
        found.append((name, log_errors, gpus))
    return found


def _predicted(folder: Folder) -> pd.Series:
    """Seconds of kernels by the roofline."""
    rows = pd.read_csv(folder.path / "neusight-kernels/kernels.csv")
    columns = Kernels.of(rows, data_sheets(folder.document("neusight-kernels/gpus.json")))
    return pd.Series(np.maximum(columns.compute_s, columns.traffic_s), index=rows.index)


def _kernels(folder: Folder) -> list[tuple[str, pd.Series, pd.Series]]:
    rows = pd.read_csv(folder.path / "neusight-kernels/kernels.csv")
    sheets = data_sheets(folder.document("neusight-kernels/gpus.json"))
    columns = Kernels.of(rows, sheets)
    rows["log_error"] = np.log(rows["latency_s"] / _predicted(folder))
    rows["class"] = np.where(columns.kind == "product", "products", "other operators")
    rows = rows[rows["latency_s"] > _LEAST_S]
    return [(str(name), part["log_error"], part["gpu"]) for name, part in rows.groupby("class")]


def _difference(folder: Folder, divided: bool) -> float:
    """The spread of the error that a product doesn't share with another one on its GPU: with any, or with one of at
    most four times as much work, within a seventh of whole doublings, that differs in a side by more than a half.
    """
    ((_, log_errors, gpus),) = [each for each in _classes(folder) if each[0] == "products"]
    kernels = pd.read_csv(folder.path / "neusight-kernels/kernels.csv").loc[log_errors.index]
    sides = np.log2(kernels[["batch", "m", "n", "k"]])
    found = []
    for _, errors in log_errors.groupby(gpus):
        some = errors.sample(min(len(errors), _PAIRED), random_state=0)
        one, other = np.triu_indices(len(some), 1)
        side = sides.loc[some.index].to_numpy()
        apart, work = np.abs(side[one] - side[other]).max(axis=1), np.abs((side[one] - side[other]).sum(axis=1))
        close = (work < 2.2) & (np.abs(work - work.round()) < 0.2) & (apart > 0.6) & (apart < 3)
        difference = some.to_numpy()[one] - some.to_numpy()[other]
        found.append(difference[close | np.bool_(not divided)].std() / np.sqrt(2))
    return float(np.mean(found))


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
