"""Cost tables where layers cost other shares of what they were predicted to."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from alpa_dejavu.costs.table import CostTable

if TYPE_CHECKING:
    from jaxtyping import ArrayLike, Float

_NAMES = ("compute_forward_s", "compute_backward_s", "update_s")


def own_seconds(table: CostTable) -> Float[np.ndarray, "3 L S C"]:
    """Returns the seconds of each single layer's operators forward, backward and once a step, without those of
    starting a compiled computation and a step.
    """
    devices = [devices.kinds[0] for devices in table.devices]
    start_s, step_s = (np.array([[getattr(device, name)] for device in devices]) for name in ("dispatch_s", "step_s"))
    alone = [np.moveaxis(np.diagonal(np.asarray(getattr(table, name))), -1, 0) for name in _NAMES]
    return np.maximum([alone[0] - start_s, alone[1] - start_s, alone[2] - step_s], 0.0)


def with_layer_factors(table: CostTable, factors: Float[ArrayLike, " L"]) -> CostTable:
    """Returns the cost table in which each layer's operators take `factors` times as long; collectives don't."""
    more = own_seconds(table) * (np.asarray(factors, dtype=np.float64) - 1)[:, None, None]
    before = np.concatenate([np.zeros_like(more[:, :1]), np.cumsum(more, axis=1)], axis=1)
    size = more.shape[1]
    inside = np.triu(np.ones((size, size), dtype=np.bool_))[..., None, None]
    changed: dict[str, Any] = {}
    for name, ends in zip(_NAMES, before, strict=True):
        added = ends[None, 1:] - ends[:-1, None]
        seconds = np.asarray(getattr(table, name))
        changed[name] = np.where(inside, np.maximum(seconds + added, 0.0), seconds)
    return dataclasses.replace(table, **changed)
