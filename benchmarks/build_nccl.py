"""Fits the figures of NCCL's collectives to open measurements.

    python benchmarks/build_nccl.py [--operators ../shared/data/gpu-operators] [--train ../shared/data] [--out FILE]

Each generation of GPUs has figures of its own, drawn to common ones as far as its measurements leave them open; all
hosts with PCIe alone count as one generation. Figures between hosts are fitted to sockets over 25 Gbit/s; those of RDMA
are estimates. The 90 % intervals are from the errors on what was left out: a quarter of the shapes, a mesh, a size of
groups across hosts, and for GPUs that nobody measured a whole generation.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.optimize import least_squares
from tqdm import tqdm

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.communication import AlphaBeta, Group
from alpa_dejavu.costs.communication._nccl import FILE, LONG_BYTES, Nccl, NcclFigures, NetworkFigures, kind_of
from alpa_dejavu.costs.communication.learned import interval_ends
from alpa_dejavu.problem import Cluster, Link
from harness import wrong_input_told
from published._alpa_collectives import alpa_collectives
from published._folder import Folder
from published._jobs import gpu_named
from published._scores import scored

__all__ = [
    "FOLDS", "Errors", "Measured", "build", "either_way", "ends", "fit", "gpus_left_out", "host_of", "operators",
    "profiles", "shapes_left_out",
]  # fmt: skip

DATE = "2026-11-29"
"""On which the model was last changed: not the day of a build, so that the same file comes out."""
ORIGIN = {
    "ampere, hopper, blackwell, pcie": "ai-dynamo/aiconfigurator, August 2026: NCCL inside hosts of A100, H100, B200 "
    "and (PCIe alone) L40S",
    "ampere, volta": "vTrain, MICRO 2024 (VIA-Research/vTrain): all-reduces inside hosts of A100 and V100",
    "volta, sockets, launch_s": "Alpa's profile of p3.16xlarge (explcre/pipeDejavu)",
    "rdma": "an estimate",
}
PRIOR = {
    "start_s": (7e-6, 0.5, 0.3), "hop_s": (1e-6, 0.5, 0.2), "quick": (0.5, 0.5, 0.15), "step_s": (8e-6, 0.7, 0.3),
    "share": (0.8, 0.3, 0.05), "own": (0.5, 0.5, 0.15), "switch": (0.8, 0.3, 0.1), "peer_s": (5e-7, 1.0, 0.3),
    "exchange_s": (5e-6, 0.7, 0.3), "exchange_share": (0.9, 0.2, 0.1), "crowd": (1.0, 0.5, 0.5),
}  # fmt: skip
"""The figures inside a host: the value before any measurement, its spread, and that of generations about the common
one; spreads are standard deviations of logarithms."""
NETWORK_PRIOR = {"hop": (1.0, 1.0), "peer": (1.0, 1.0), "share": (0.85, 0.1), "tree": (0.85, 0.1)}
RDMA = NetworkFigures(hop=0.5, peer=0.1, share=0.85, tree=0.75)
"""Nothing of it was measured here. Half of the round trip in the machine files is about the 14 µs that NCCL's own
tuning reckons a hop of long messages with; the rest are estimates."""
_LOSS, _PRIOR_WEIGHT, _REACH, _STEP, _ENOUGH = 0.05, 0.1, 3.0, 1e-6, 1e-6
FOLDS, _OTHERS_WEIGHT, _SHORT_BYTES = 4, 0.2, 256 * 1024
_TWICE = round(math.log(2), 3)

Array: TypeAlias = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """A collective of a group that was measured at several sizes, both arrays of shape (sizes,).

    `part` names what is left out together: a GPU, a mesh, or a size of groups. In a fit an error counts `weight` times.
    """

    part: str
    collective: str
    group: Group
    num_bytes: Array
    seconds: Array
    launch_s: float = 0.0
    weight: float = 1.0

    @property
    def kind(self) -> str:
        """Whose figures the group has inside a host."""
        return kind_of(self.group)

    def errors(self, figures: NcclFigures, network: NetworkFigures | None = None) -> Array:
        """The logarithms of measured over predicted seconds, shape (sizes,)."""
        model = Nccl(self.launch_s, figures, network)
        return np.asarray(np.log(self.seconds / model.seconds(self.collective, self.num_bytes, self.group)))

    def take(self, chosen: NDArray[np.bool_]) -> Measured:
        """The measurements at the sizes that a mask chooses."""
        return dataclasses.replace(self, num_bytes=self.num_bytes[chosen], seconds=self.seconds[chosen])


Rows: TypeAlias = Sequence[Measured]
Errors: TypeAlias = list[tuple[Measured, Array]]
"""Measured collectives, each with the logarithms of measured over predicted seconds of its sizes."""


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the file; returns 2 where an input is wrong, with what and where on stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path("../shared/data")
    parser.add_argument("--operators", type=Path, default=data / "gpu-operators", help="the folder with nccl.csv")
    parser.add_argument("--train", type=Path, default=data, help="the folder of all other measurements")
    parser.add_argument("--out", type=Path, default=FILE, help="the file (the package's own)")
    given = parser.parse_args(arguments)
    content = build(operators(Folder(given.operators)), *profiles(Folder(given.train)))
    given.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


def build(nccl: Rows, vtrain: Rows, alpa: Rows) -> dict[str, Any]:
    """The file's content: figures, the ends of intervals, and the errors on what was left out."""
    inside, across = ([row for row in alpa if (len(set(row.group.hosts)) > 1) == apart] for apart in (False, True))
    figures = fit([*nccl, *vtrain, *inside])
    sockets = _fit_network(across, figures["volta"])
    shapes, gpus = (turns(nccl, [*vtrain, *inside]) for turns in (shapes_left_out, gpus_left_out))
    meshes = [([*nccl, *vtrain, *kept], held) for kept, held in _parts(inside)]
    out = {
        "shapes": [pair for pair in shapes if pair[0].kind != "pcie"],
        "shapes with PCIe alone": [pair for pair in shapes if pair[0].kind == "pcie"],
        "gpus": [pair for pair in gpus if pair[0].kind != "pcie"],
        "gpus with PCIe alone": [pair for pair in gpus if pair[0].kind == "pcie"],
        "meshes of V100": _left_out(meshes, _by_kind),
        "sizes of groups across hosts": _left_out(_parts(across), lambda kept: _between(kept, figures["volta"])),
    }
    kinds = {row.kind: [pair for pair in shapes if pair[0].kind == row.kind] for row in nccl}
    ranges = kinds | {"volta": out["meshes of V100"], "common": either_way(out["gpus"])}
    ranges["across"] = out["sizes of groups across hosts"]
    return {
        "version": 1,
        "units": "SI; ends of 90 % intervals are logarithms, for tensors below 1 MiB and for others",
        "date": DATE,
        "origin": ORIGIN,
        "launch_s": {"alpa": _rounded(alpa[0].launch_s)},
        "figures": {kind: _figures(own) for kind, own in figures.items()},
        "network": {"sockets": _figures(sockets), "rdma": _figures(RDMA)},
        "ends": {kind: ends(errors) for kind, errors in ranges.items()} | {"nothing": [[-_TWICE, _TWICE]] * 2},
        "held_out": {name: _summary(errors) for name, errors in out.items()},
    }


def fit(measured: Rows) -> dict[str, NcclFigures]:
    """The figures of each generation in the measurements, and under "common" those of any other."""
    own = {kind: [row for row in measured if row.kind == kind] for kind in sorted({row.kind for row in measured})}
    prior, spread, deviation = np.array([(math.log(value), *spreads) for value, *spreads in PRIOR.values()]).T
    width, start = len(prior), np.tile(prior, len(own) + 1)
    # What holds the figures: the common ones by the prior, each generation's by the common ones.
    near, drawn = np.diag(1 / spread), np.diag(1 / deviation)
    held = np.kron(np.eye(len(own) + 1), drawn)
    held[:, :width] = np.vstack([near, *[-drawn] * len(own)])
    held *= _PRIOR_WEIGHT

    def off(values: Array, kind: str) -> Array:
        figures = NcclFigures(*np.exp(values).tolist())
        return np.concatenate([row.weight * row.errors(figures) for row in own[kind]])

    def of_kinds(values: Array, part: Callable[[Array, str], Array]) -> list[Array]:
        return [part(some, kind) for some, kind in zip(values.reshape(-1, width)[1:], own, strict=True)]

    def residuals(values: Array) -> Array:
        return np.concatenate([*of_kinds(values, off), held @ (values - start)])

    def slopes_of(values: Array, kind: str) -> Array:
        here = off(values, kind)
        return np.stack([(off(values + step, kind) - here) / _STEP for step in _STEP * np.eye(width)], axis=1)

    def slopes(values: Array) -> Array:
        blocks = block_diag(*of_kinds(values, slopes_of))
        return np.vstack([np.hstack([np.zeros((len(blocks), width)), blocks]), held])

    limits = start - _REACH, start + _REACH
    fitted = least_squares(residuals, start, slopes, limits, ftol=_ENOUGH, xtol=_ENOUGH, loss="soft_l1", f_scale=_LOSS)
    figures = [NcclFigures(*some) for some in np.exp(fitted.x).reshape(-1, width).tolist()]
    return dict(zip(["common", *own], figures, strict=True))


def shapes_left_out(nccl: Rows, rest: Rows) -> Errors:
    """The errors on a quarter of the shapes (collective, GPUs and bytes, of all GPUs at once), left out in turn."""
    shapes = sorted({(row.collective, row.group.size, size) for row in nccl for size in row.num_bytes.tolist()})
    turns = dict(zip(shapes, np.random.default_rng(0).permutation(len(shapes)) % FOLDS, strict=True))
    folds = [np.array([turns[row.collective, row.group.size, size] for size in row.num_bytes.tolist()]) for row in nccl]

    def split(turn: int) -> tuple[Rows, Rows]:
        pairs = [(row, fold == turn) for row, fold in zip(nccl, folds, strict=True)]
        return [*(row.take(~out) for row, out in pairs), *rest], [row.take(out) for row, out in pairs]

    return _left_out([split(turn) for turn in range(FOLDS)], _by_kind)


def gpus_left_out(nccl: Rows, rest: Rows) -> Errors:
    """The errors on GPUs by the common figures of all others, each left out in turn with all of its generation."""

    def common(kept: Rows) -> Callable[[Measured], Array]:
        figures = fit(kept)["common"]
        return lambda row: row.errors(figures)

    splits = [([row for row in (*kept, *rest) if row.kind != held[0].kind], held) for kept, held in _parts(nccl)]
    return _left_out(splits, common)


def ends(errors: Errors) -> list[list[float]]:
    """The ends of 90 % intervals, as logarithms, of short and long tensors; without errors, half and twice."""
    return [_ends(errors, is_long) for is_long in (False, True)]


def either_way(errors: Errors) -> Errors:
    """The errors and their opposites: a few GPUs say how far off another may be, but not to which side."""
    return [*errors, *((row, -off) for row, off in errors)]


def operators(folder: Folder) -> list[Measured]:
    """The collectives inside hosts of a folder with nccl.csv, by GPU."""
    texts, numbers = ["gpu", "collective"], ["num_gpus", "num_bytes", "time_s"]
    rows = folder.table("nccl.csv", texts, numbers, counts=["num_gpus"])
    rows["collective"] = rows["collective"].replace({"alltoall": "all_to_all"})
    parts = rows.groupby(texts + numbers[:1])
    return [_measured(gpu, name, host_of(gpu, int(size)), part) for (gpu, name, size), part in parts]


def host_of(gpu: str, size: int) -> Group:
    """All GPUs of one host, by the links of their data sheet."""
    sheet = gpu_named(gpu)
    link = Link(0.0, sheet.link_bytes_per_s)
    return Group(Cluster.uniform(gpu, ["host"], sheet.device(), size, link, link), (0,) * size)


def profiles(folder: Folder) -> tuple[list[Measured], list[Measured]]:
    """The measurements of vTrain, and those of Alpa's profiler."""
    p3, vtrain, alpa = named_cluster("p3.16xlarge", 4), [], []
    for gpu in ("a100", "v100"):
        rows = folder.table(f"vtrain-a100/all_reduce_{gpu}_intra_node.csv", [], ["num_gpus", "bytes", "time_s"])
        for size, part in rows.rename(columns={"bytes": "num_bytes"}).groupby("num_gpus"):
            group = host_of(gpu, int(size)) if gpu == "a100" else Group(p3, (0,) * int(size))
            # Some V100 of three, five, six or seven are joined by fewer NVLinks than a machine file can say.
            if gpu == "a100" or size in (2, 4, 8):
                vtrain.append(dataclasses.replace(_measured(gpu, "all_reduce", group, part), weight=_OTHERS_WEIGHT))
    rows = alpa_collectives(folder)
    short = rows[(rows["hosts"] == 1) & (rows["num_bytes"] <= _SHORT_BYTES)].groupby("group_size")["time_s"].median()
    launch_s = float(np.polyfit(short.index, short, 1)[0])
    groups = ["mesh", "collective", "group_size", "hosts", "sharing"]
    for (mesh, name, size, hosts, sharing), part in rows.groupby(groups):
        members = tuple(np.repeat(np.arange(int(hosts)), int(size / hosts)).tolist())
        group = Group(p3, members, int(sharing) if hosts > 1 else 1)
        # Its bytes of an all-to-all are those of all devices.
        own = part.assign(num_bytes=part["num_bytes"] / size) if name == "all_to_all" else part
        label = mesh if hosts == 1 else f"groups of {size:g}"
        alpa.append(dataclasses.replace(_measured(label, name, group, own), launch_s=launch_s))
    return vtrain, alpa


def _measured(part: str, collective: str, group: Group, rows: pd.DataFrame) -> Measured:
    return Measured(part, collective, group, rows["num_bytes"].to_numpy(float), rows["time_s"].to_numpy(float))


def _parts(rows: Rows) -> Iterator[tuple[Rows, Rows]]:
    """All measurements but a part's, and that part's, for each part in turn."""
    for name in sorted({row.part for row in rows}):
        yield [row for row in rows if row.part != name], [row for row in rows if row.part == name]


def _left_out(splits: Any, fitted: Callable[[Rows], Callable[[Measured], Array]]) -> Errors:
    errors: Errors = []
    for kept, held in tqdm(list(splits), leave=False):
        error_of = fitted(kept)
        errors += [(row, error_of(row)) for row in held]
    return errors


def _by_kind(kept: Rows) -> Callable[[Measured], Array]:
    figures = fit(kept)
    return lambda row: row.errors(figures[row.kind])


def _between(kept: Rows, inside: NcclFigures) -> Callable[[Measured], Array]:
    network = _fit_network(kept, inside)
    return lambda row: row.errors(inside, network)


def _fit_network(measured: Rows, inside: NcclFigures) -> NetworkFigures:
    prior, spread = np.array([(math.log(value), spread) for value, spread in NETWORK_PRIOR.values()]).T

    def residuals(values: Array) -> Array:
        network = NetworkFigures(*np.exp(values).tolist())
        errors = [row.errors(inside, network) for row in measured]
        return np.concatenate([*errors, _PRIOR_WEIGHT * (values - prior) / spread])

    return NetworkFigures(*np.exp(least_squares(residuals, prior, loss="soft_l1", f_scale=_LOSS).x).tolist())


def _ends(errors: Errors, is_long: bool) -> list[float]:
    chosen = [off[(row.num_bytes >= LONG_BYTES) == is_long] for row, off in errors]
    values = np.concatenate([np.zeros(0), *chosen])
    return np.round(interval_ends(values), 3).tolist() if len(values) else [-_TWICE, _TWICE]


def _summary(errors: Errors) -> dict[str, Any]:
    off = np.concatenate([np.zeros(0), *(values for _, values in errors)])
    figures = scored(np.exp(-off), np.ones(len(off)))
    named = {name: figures[name] for name in ("median_error", "bias", "within_20")}
    if len(off):
        by_sheets = [AlphaBeta().seconds(row.collective, row.num_bytes, row.group) / row.seconds for row, _ in errors]
        named["sheets"] = float(np.median(np.abs(np.concatenate(by_sheets) - 1)))
    return {"rows": len(off), **{name: _rounded(value) for name, value in named.items() if value is not None}}


def _figures(figures: NcclFigures | NetworkFigures) -> dict[str, float]:
    return {name: _rounded(value) for name, value in vars(figures).items()}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


if __name__ == "__main__":
    raise SystemExit(main())
