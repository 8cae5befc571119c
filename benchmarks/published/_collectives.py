"""NCCL's collectives inside hosts beside what the planner's model says of them: fitted to them, and without them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from alpa_dejavu.costs.communication import Nccl
from alpa_dejavu.costs.communication._nccl import LONG_BYTES
from build_nccl import FOLDS, Errors, Measured, either_way, ends, gpus_left_out, operators, profiles, shapes_left_out
from published._folder import Folder
from published._scores import by_source, scored

__all__ = ["left_out", "shipped"]


def shipped(folder: Path) -> dict[str, Any]:
    """How near the shipped model comes to a folder's nccl.csv.

    A GPU that wasn't measured goes by the figures of its generation.

    Returns:
        The figures of `scored` of all rows; of each GPU's under `by_source`; without GPUs that have PCIe alone under
        `nvlink`; of tensors of at least 1 MiB alone under `long`, and of others under `short`.

    Raises:
        FileNotFoundError: the folder has no nccl.csv.
        ValueError: it is broken, or has a GPU whose data sheet isn't known.
    """
    model, tables = Nccl(), []
    for row in operators(Folder(folder)):
        asked = row.collective, row.num_bytes, row.group
        tables.append(_table(row, model.seconds(*asked), *model.interval(*asked)[:2]))
    return _judged(tables)


def left_out(folder: Path, train: Path | None = None) -> dict[str, Any]:
    """How near the model comes to a folder's nccl.csv where it is fitted without what it predicts.

    Args:
        train: the folder of the other measurements that take part in the fit; None: none does.

    Returns:
        Under `gpus`, with each GPU left out in turn with all of its generation, and under `shapes`, with a quarter of
        the shapes of all GPUs, what `shipped` returns. Intervals are from the errors on what else was left out: other
        GPUs with NVLink, or with PCIe alone; or other shapes on the same GPU.
    """
    nccl = operators(Folder(folder))
    vtrain, alpa = ([], []) if train is None else profiles(Folder(train))
    rest = [*vtrain, *(row for row in alpa if len(set(row.group.hosts)) == 1)]
    shapes, gpus = shapes_left_out(nccl, rest), gpus_left_out(nccl, rest)
    folds = [n * FOLDS // len(shapes) for n in range(len(shapes))]
    return {
        "gpus": _held(gpus, [row.kind == "pcie" for row, _ in gpus], [row.part for row, _ in gpus], either_way),
        "shapes": _held(shapes, [row.part for row, _ in shapes], folds, list),
    }


def _held(
    errors: Errors, alike: Sequence[Hashable], turns: Sequence[Hashable], taken: Callable[[Errors], Errors]
) -> dict[str, Any]:
    """The scores of errors, with intervals by the errors on like rows that other turns left out."""
    keys, ranges, tables = list(zip(alike, turns, strict=True)), {}, []
    for kin, turn in dict.fromkeys(keys):
        others = [a == kin and b != turn for a, b in keys]
        ranges[kin, turn] = ends(taken([pair for pair, is_other in zip(errors, others, strict=True) if is_other]))
    for (row, off), key in zip(errors, keys, strict=True):
        short, long = ranges[key]
        span = np.exp(np.where((row.num_bytes < LONG_BYTES)[:, None], short, long))
        predicted = row.seconds * np.exp(-off)
        tables.append(_table(row, predicted, predicted * span[:, 0], predicted * span[:, 1]))
    return _judged(tables)


def _table(row: Measured, predicted: Any, lower: Any, upper: Any) -> pd.DataFrame:
    measured = {"gpu": row.part, "nvlink": row.kind != "pcie", "num_bytes": row.num_bytes, "measured": row.seconds}
    return pd.DataFrame({**measured, "predicted": predicted, "lower": lower, "upper": upper})


def _judged(tables: Sequence[pd.DataFrame]) -> dict[str, Any]:
    table = pd.concat(tables, ignore_index=True)

    def columns(rows: pd.DataFrame) -> Any:
        return rows["predicted"], rows["measured"], (rows["lower"], rows["upper"])

    long = table["num_bytes"] >= LONG_BYTES
    parts = {"nvlink": table["nvlink"], "long": long, "short": ~long}
    return {
        **by_source(table["gpu"].tolist(), *columns(table)),
        **{name: scored(*columns(table[chosen])) for name, chosen in parts.items()},
    }
