"""Alpa's objects as ours: its layers, its submeshes and configs, its options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from alpa_dejavu.layers.features import describe
from alpa_dejavu.problem import MeshConfig, Model, SearchSpace, Submesh
from alpa_dejavu.sharding.layers import layers_of
from alpa_dejavu.sharding.sharded import ModelSharding
from alpa_dejavu.sharding.solved import SolvedLayers


def model_of(
    layers: Sequence[Any],
    accumulators: Mapping[Any, Any],
    apply_grad_layers: Sequence[Any],
    inference: bool,
    micro_batch: int | None,
) -> Model:
    """Returns the model that Alpa's layers make: forward ones, then backward ones from the last to the first.

    `accumulators` has by each operand of backward layers that gradients are added to the result of that;
    `apply_grad_layers` for each forward layer its part of the optimizer, or None; `micro_batch` its samples, or None.
    """
    jaxprs = [layer.closed_jaxpr().jaxpr for layer in layers]
    half = len(jaxprs) if inference else len(jaxprs) // 2
    updates = [None if layer is None else layer.closed_jaxpr().jaxpr for layer in apply_grad_layers]
    parts = jaxprs[:half], jaxprs[: half - 1 : -1], () if inference else updates, {} if inference else accumulators
    solved = SolvedLayers(layers_of(*parts, micro_batch=micro_batch))
    return dataclasses.replace(describe(*parts, micro_batch), sharding=ModelSharding(solved))


def space_of(
    submesh_choices: Sequence[Sequence[int]],
    autosharding_configs: Sequence[Sequence[Any]],
    tolerance: float,
    default_options: Any,
) -> SearchSpace:
    """Returns the search space of Alpa's submeshes (hosts, devices per host), and their configs: pairs (logical mesh,
    auto-sharding options) or None. All take over the default options' data parallelism and ZeRO.
    """
    submeshes = tuple(Submesh(int(hosts), int(devices)) for hosts, devices in submesh_choices)
    forced = bool(getattr(default_options, "force_data_parallel", False))
    zero = 3 if getattr(default_options, "force_zero_stage_3", False) else 0
    zero = zero or (2 if getattr(default_options, "prefer_reduce_scatter", False) else 0)
    configs = tuple(
        tuple(config and dataclasses.replace(_config(config[0].shape, config[1], forced), zero=zero) for config in row)
        for row in autosharding_configs
    )
    return SearchSpace(submeshes, configs, tolerance)


def _config(shape: Sequence[int], options: dict[str, Any], data_parallel: bool) -> MeshConfig:
    """A config whose second axis divides operators, unless all is to be data parallel."""
    across, along = (int(n) for n in shape)
    if data_parallel:
        return MeshConfig((across, along), across * along, 1, {**options, "force_batch_dim_to_mesh_dim": 0})
    return MeshConfig((across, along), across, along, dict(options))
