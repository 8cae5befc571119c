"""The file beside a plan."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from alpa_dejavu._collector import collector_paused
from alpa_dejavu._json_file import write_whole_bytes
from alpa_dejavu.kept._bytes import packed_json, read_packed
from alpa_dejavu.kept._cluster import cluster_data, cluster_of
from alpa_dejavu.kept._kept import Kept
from alpa_dejavu.kept._model import model_data, model_of
from alpa_dejavu.kept._sharding import KeptLayers, Mesh, sharding_data, sharding_of
from alpa_dejavu.problem import Run
from alpa_dejavu.sharded import ModelSharding, solved_for
from alpa_dejavu.space import search_space

VERSION = 1
_REMEDY = "`alpa-dejavu plan --json FILE` writes it beside the plan: plan once more"


def kept_path(plan: str | os.PathLike[str]) -> pathlib.Path:
    """Where what is kept of a plan is.

    >>> kept_path("plans/gpt.json").name
    'gpt.kept.json.gz'
    """
    path = pathlib.Path(plan)
    return path.with_name(f"{path.stem}.kept.json.gz")


def write_kept(kept: Kept, plan: str | os.PathLike[str]) -> pathlib.Path:
    """Writes it beside a plan's file, whole or not at all.

    Raises:
        ValueError: it can't be written.
    """
    path = kept_path(plan)
    with collector_paused():
        content = packed_json(_data(kept))
    write_whole_bytes(path, content)
    return path


def read_kept(plan: str | os.PathLike[str]) -> Kept:
    """Reads what is kept beside a plan's file.

    Raises:
        ValueError: it isn't there, or isn't such a file.
    """
    path = kept_path(plan)
    try:
        data = read_packed(path)
    except OSError as error:
        raise ValueError(f"{path}, which is kept for planning again, can't be read: {error}; {_REMEDY}") from None
    except ValueError as error:
        raise ValueError(f"{path} isn't what is kept for planning again: {error}; {_REMEDY}") from None
    if not isinstance(data, dict) or data.get("version") != VERSION:
        there = data.get("version") if isinstance(data, dict) else None
        raise ValueError(f"{path}: version is {there!r}, but must be {VERSION}; {_REMEDY}")
    try:
        return _kept(data)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} isn't what is kept for planning again: {error!r}; {_REMEDY}") from None


def _data(kept: Kept) -> dict[str, Any]:
    sharding = kept.model.sharding
    return {
        "version": VERSION,
        "batch": kept.batch,
        "num_micro_batches": kept.run.num_micro_batches,
        "schedule": kept.run.schedule,
        "remat": list(kept.remat),
        "zero": list(kept.zero),
        "submeshes": kept.submeshes,
        "imbalance": None if math.isinf(kept.imbalance) else kept.imbalance,
        "models": list(kept.models),
        "memory_margin": kept.memory_margin,
        "cluster": cluster_data(kept.cluster),
        "model": model_data(kept.model),
        "sharding": sharding_data(sharding, _meshes(kept)) if isinstance(sharding, ModelSharding) else None,
    }


def _meshes(kept: Kept) -> list[Mesh]:
    """What a search on the plan's cluster asks for; it has asked already."""
    micro_batch = kept.batch // kept.run.num_micro_batches
    space = search_space(kept.cluster, micro_batch, kept.submeshes, kept.remat, kept.zero, kept.imbalance)
    meshes = dict.fromkeys(solved_for(config) for row in space.configs for config in row if config is not None)
    solved = kept.model.sharding.solved if isinstance(kept.model.sharding, ModelSharding) else None
    return [mesh for mesh in meshes if mesh in solved.meshes] if isinstance(solved, KeptLayers) else [*meshes]


def _kept(data: Mapping[str, Any]) -> Kept:
    model = model_of(data["model"])
    if data["sharding"] is not None:
        model = dataclasses.replace(model, sharding=sharding_of(data["sharding"]))
    latency, communication = data["models"]
    return Kept(
        model=model,
        cluster=cluster_of(data["cluster"]),
        run=Run(int(data["num_micro_batches"]), data["schedule"]),
        batch=int(data["batch"]),
        remat=tuple(data["remat"]),
        zero=tuple(map(int, data["zero"])),
        submeshes=data["submeshes"],
        imbalance=math.inf if data["imbalance"] is None else float(data["imbalance"]),
        models=(latency, communication),
        memory_margin=data.get("memory_margin"),
    )
