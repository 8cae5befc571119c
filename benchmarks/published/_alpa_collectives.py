"""Collectives on AWS p3.16xlarge, by Alpa's mesh profiler, which NCCL's figures of V100 are fitted to."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd

from published._folder import Folder, UnreadableError, measured, place

_ROWS = "alpa-p3.16xlarge/collectives*.csv"
_COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
_LEAST_BYTES = 64 * 1024
_SIZES = {"f16": 2, "f32": 4, "f64": 8, "bf16": 2, "s32": 4, "u8": 1}


def alpa_collectives(folder: Folder) -> pd.DataFrame:
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
    rows = measured(rows[rows["filled_in"] != 1], ["time_s"], _ROWS)
    rows["num_bytes"] = rows["num_elements"] * rows["dtype"].map(_SIZES)
    rows = rows[(rows["group_size"] > 1) & (rows["num_bytes"] >= _LEAST_BYTES)]
    places = [_place(mesh, groups) for mesh, groups in zip(rows["mesh"], rows["replica_groups"], strict=True)]
    rows[["hosts", "sharing"]] = np.array(places, dtype=float).reshape(-1, 2)
    return rows.drop(columns=["filled_in"]).reset_index(drop=True)


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


def _place(mesh: str, replica_groups: str) -> tuple[int, int]:
    """Hosts that a group spans, and groups that share a host's network."""
    per_host = int(mesh.split("x")[1])
    spans = [{device // per_host for device in group} for group in json.loads(replica_groups)]
    sharing = max(sum(host in span for span in spans) for host in set().union(*spans))
    return max(map(len, spans)), sharing
