"""Stand-in for Alpa's `get_compute_cost`: the same arrays, predicted instead of profiled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def get_compute_cost(
    virtual_mesh: Any,
    submesh_choices: Sequence[tuple[int, int]],
    autosharding_configs: Sequence[Sequence[Any]],
    layers: Sequence[Any],
    accumulator_mapping: Mapping[Any, Any],
    acc_grad_invars: Sequence[Any],
    acc_grad_outvars: Sequence[Any],
    apply_grad_layers: Sequence[Any],
    apply_grad_global_info: tuple[Any, ...],
    num_micro_batches: int,
    default_as_option: Any,
    auto_stage_option: Any,
    inference_mode: bool = False,
) -> tuple[NDArray[np.float64], NDArray[np.int64] | None]:
    """Predicts the costs of all candidate stages in place of Alpa's `get_compute_cost`, which compiles and runs them.

    The arguments are those of Alpa's function. The schedule isn't among them, so memory is counted for 1F1B.

    Returns:
        Seconds of one micro-batch, forward and backward, of each stage of layers i..j on each of S submeshes with each
        of C configs, shape (L, L, S, C), infinite where there is no such stage; and how many stages may follow it
        before memory is full, of the same shape (None in inference).
    """
    from alpa_dejavu.alpa._translate import model_of, space_of
    from alpa_dejavu.alpa.ray_cluster import cluster_of
    from alpa_dejavu.calibration import prices
    from alpa_dejavu.costs.table import cost_table
    from alpa_dejavu.problem import Run

    tolerance = getattr(auto_stage_option, "stage_imbalance_tolerance", math.inf)
    priced = prices(
        cluster_of(virtual_mesh, getattr(auto_stage_option, "cluster", None)),
        getattr(auto_stage_option, "calibration", None),
        getattr(auto_stage_option, "latency", "auto"),
        getattr(auto_stage_option, "communication", "auto"),
    )
    table = cost_table(
        model_of(layers, accumulator_mapping, apply_grad_layers, inference_mode, micro_batch=None),
        priced.cluster,
        space_of(submesh_choices, autosharding_configs, tolerance, default_as_option),
        Run(num_micro_batches, "inference" if inference_mode else "1f1b"),
        priced.models,
    )
    return table.compute_costs_s, None if inference_mode else table.max_n_succ_stages
