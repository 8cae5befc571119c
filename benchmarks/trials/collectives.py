"""Collectives on AWS p3.16xlarge, by Alpa's mesh profiler: a mesh or a group size that was never seen."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from alpa_dejavu.costs.communication.learned import Collectives, FittedCollectives, summary, suspects
from trials._folder import Folder, UnreadableError, measured, place
from trials._trial_set import MEASURED_S, Context, Learned, TrialSet, labels

_log = logging.getLogger(__name__)

_ROWS = "alpa-p3.16xlarge/collectives*.csv"
_COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
_LEAST_BYTES = 64 * 1024
_SIZES = {"f16": 2, "f32": 4, "f64": 8, "bf16": 2, "s32": 4, "u8": 1}

NVLINK_BYTES_PER_S, NETWORK_BYTES_PER_S = 25e9, 25e9 / 8
"""Of one NVLink in one direction, and between hosts: data sheets of V100 and of p3.16xlarge."""

_NVLINKS = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 1, (2, 6): 2, (3, 7): 2,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 1,
}  # fmt: skip
"""The hybrid cube mesh of eight V100: how many links join two of them."""


def load(folder: Folder) -> pd.DataFrame:
    """The measured collectives of a folder, without those that are too short to tell anything."""
    texts, numbers = ["mesh", "collective", "replica_groups", "dtype"], ["num_groups", "group_size", "num_elements"]
    rows = folder.table(_ROWS, texts, [*numbers, "time_s"], ["filled_in"], counts=["num_groups", "group_size"])
    _check_groups(folder, rows)
    for column, wrong, asked in (
        ("collective", ~rows["collective"].isin(_COLLECTIVES), f"must be one of {', '.join(_COLLECTIVES)}"),
        ("dtype", ~rows["dtype"].isin(list(_SIZES)), f"must be one of {', '.join(_SIZES)}"),
        ("num_elements", ~(rows["num_elements"] >= 0), "must be a number of at least 0"),
    ):
        if wrong.any():
            index = rows.index[wrong][0]
            said = f"{column} is {rows.loc[index, column]!r}, but {asked}"
            raise UnreadableError(f"{folder.path}: {place(rows, index)}: {said}; mend or remove it")
    rows = measured(rows[rows["filled_in"] != 1], ["time_s"], _ROWS).rename(columns={"time_s": MEASURED_S})
    rows["num_bytes"] = rows["num_elements"] * rows["dtype"].map(_SIZES)
    rows = rows[(rows["group_size"] > 1) & (rows["num_bytes"] >= _LEAST_BYTES)]
    places = [_place(mesh, groups) for mesh, groups in zip(rows["mesh"], rows["replica_groups"], strict=True)]
    rows[["hosts", "sharing", "links"]] = np.array(places, dtype=float).reshape(-1, 3)
    return rows.drop(columns=["filled_in"]).reset_index(drop=True)


def _within(folder: Folder) -> pd.DataFrame:
    rows = load(folder)
    return rows[rows["hosts"] == 1].reset_index(drop=True)


def _across(folder: Folder) -> pd.DataFrame:
    rows = load(folder)
    return rows[rows["hosts"] > 1].reset_index(drop=True)


def _check_groups(folder: Folder, rows: pd.DataFrame) -> None:
    """That groups are lists of a mesh's devices, each device once, all as large as the row says."""
    said = ["mesh", "replica_groups", "num_groups", "group_size"]
    for index, (mesh, text, num_groups, size) in rows[said].drop_duplicates().iterrows():
        where = f"{folder.path}: {place(rows, index)}"
        shape = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", mesh)
        if shape is None:
            raise UnreadableError(f"{where}: mesh is {mesh!r}, but must be hosts x devices per host ('2x8'); mend it")
        devices = int(shape[1]) * int(shape[2])
        try:
            groups = [[int(device) for device in group] for group in json.loads(text)]
        except (ValueError, TypeError):
            asked = "must be lists of devices; mend it"
            raise UnreadableError(f"{where}: replica_groups is {text!r}, but {asked}") from None
        members = [device for group in groups for device in group]
        strange = [device for device in members if not 0 <= device < devices]
        if strange:
            raise UnreadableError(
                f"{where}: device {strange[0]} isn't in the mesh {mesh}, which has 0 to {devices - 1}; mend the groups"
            )
        if len(set(members)) < len(members) or len(groups) != num_groups or {*map(len, groups)} != {size}:
            raise UnreadableError(
                f"{where}: replica_groups is {text!r}, but must be {num_groups:g} groups of {size:g} devices, each "
                "once; mend it"
            )


def _place(mesh: str, replica_groups: str) -> tuple[int, int, int]:
    """Hosts that a group spans, groups that share a host's network, and the fewest NVLink lanes of a group."""
    per_host = int(mesh.split("x")[1])
    groups = json.loads(replica_groups)
    spans = [{device // per_host for device in group} for group in groups]
    sharing = max(sum(host in span for span in spans) for host in set().union(*spans))
    return max(map(len, spans)), sharing, min(_lanes([d % per_host for d in group]) for group in groups)


def _lanes(group: list[int]) -> int:
    """In how many NVLink lanes a device sends to its group at once: a ring takes a link in and one out, both ways."""
    degrees = [
        sum(count for pair, count in _NVLINKS.items() if device in pair and set(pair) <= set(group)) for device in group
    ]
    if len(group) == 2:
        return max(min(degrees[0], 1), 1)
    return max(2 * (min(degrees) // 2), 1)


def columns(rows: pd.DataFrame, context: Context) -> Collectives:
    """The rows as the model takes them."""
    within = (rows["hosts"] == 1).to_numpy()
    return Collectives(
        name=rows["collective"].to_numpy(dtype=np.str_),
        num_bytes=rows["num_bytes"].to_numpy(float),
        size=rows["group_size"].to_numpy(float),
        hosts=rows["hosts"].to_numpy(float),
        sharing=np.where(within, 1.0, rows["sharing"].to_numpy(float)),
        lanes=_rate(rows, within),
    )


def _rate(rows: pd.DataFrame, within: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.where(within, NVLINK_BYTES_PER_S * rows["links"].to_numpy(float), NETWORK_BYTES_PER_S)


def features(rows: pd.DataFrame, context: Context) -> pd.DataFrame:
    """The latency of a launch and the seconds of the bytes, and what takes part."""
    volume_s = columns(rows, context).volume_s
    table = pd.DataFrame({"compute_s": 2e-5, "traffic_s": volume_s}, index=rows.index)
    for name in ("num_bytes", "group_size", "num_groups", "hosts", "sharing"):
        table[name] = rows[name].astype(float)
    for name in _COLLECTIVES:
        table[f"is_{name}"] = (rows["collective"] == name).astype(float)
        table[f"{name}_traffic_s"] = table[f"is_{name}"] * table["traffic_s"]
    return table


def _without_suspects(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows without those that can't be right."""
    series = list(rows[["mesh", "collective", "replica_groups", "dtype"]].itertuples(index=False, name=None))
    found = suspects(series, rows["num_bytes"].to_numpy(float), rows[MEASURED_S].to_numpy(float))
    if found:
        _log.info("%s: of %d rows left out: %s", _ROWS, len(rows), summary(found))
    return rows.drop(index=rows.index[[each.row for each in found]])


def _set(place: str, loaded: Callable[[Folder], pd.DataFrame], unseen: str) -> TrialSet:
    """The set of collectives that are within hosts or not, whose groups are the values of a column."""
    groups = lambda rows: rows[unseen].astype(str)  # noqa: E731
    predictor = partial(Learned, FittedCollectives, columns, groups, _without_suspects)
    return TrialSet(f"alpa-p3.16xlarge/collectives:{place}", loaded, labels(unseen), predictor, features)


SETS = (_set("intra_host", _within, "mesh"), _set("cross_host", _across, "group_size"))
