"""Stand-ins for Alpa's dynamic programs and its costs of stages, with its signatures and its results."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import SlicingProblem
from alpa_dejavu.slicing import Slicer
from alpa_dejavu.slicing import slicer as choose_slicer
from alpa_dejavu.slicing.why_none import why_none

_log = logging.getLogger(__name__)

Solution = list[tuple[tuple[int, int], int, int]]


def training_dp(
    num_layers: int,
    num_devices: int,
    num_microbatches: int,
    submesh_choices: Sequence[tuple[int, int]],
    num_autosharding_configs: int,
    compute_cost: Any,
    max_n_succ_stages: Any,
    slicer: str | Slicer = "dynamic",
) -> tuple[float, Solution | None]:
    """Returns the stages of least cost for training, as Alpa's `training_dp` does, but exactly in float64.

    Args:
        num_layers: the number of layers, L.
        num_devices: the number of devices, all of which the stages take.
        num_microbatches: the number of micro-batches.
        submesh_choices: S pairs of hosts and devices per host.
        num_autosharding_configs: the number of configs of a submesh, C.
        compute_cost: seconds of one micro-batch for a stage of layers i..j on submesh s with config c, shape
            (L, L, S, C); infinite where there is no such stage.
        max_n_succ_stages: how many stages may follow such a stage before memory is full, shape (L, L, S, C).
        slicer: a name in `alpa_dejavu.slicing.SLICERS`, or a `Slicer` of your own.

    Returns:
        The cost in seconds and a list of ((first layer, last layer + 1), submesh, config); (infinity, None) if nothing
        fits, or the slicer found nothing that does. The log then says why.

    Raises:
        ValueError: shapes that don't fit, NaN or negative costs, counts below one, an unknown slicer.
        TypeError: `slicer` is neither a name nor a `Slicer`.
    """
    return _solve(
        num_layers, num_devices, num_microbatches, submesh_choices, num_autosharding_configs, compute_cost,
        max_n_succ_stages, "training", slicer,
    )  # fmt: skip


def inference_dp(
    num_layers: int,
    num_devices: int,
    submesh_choices: Sequence[tuple[int, int]],
    num_autosharding_configs: int,
    compute_cost: Any,
) -> tuple[float, Solution | None]:
    """Returns the stages of least cost for inference, as Alpa's `inference_dp` does, but exactly in float64: the number
    of stages times the seconds of the slowest one. The arguments and the result are those of `training_dp`.
    """
    return _solve(
        num_layers, num_devices, 1, submesh_choices, num_autosharding_configs, compute_cost, None, "inference",
        "dynamic",
    )  # fmt: skip


def _solve(
    num_layers: int,
    num_devices: int,
    num_micro_batches: int,
    submeshes: Sequence[tuple[int, int]],
    num_configs: int,
    costs: Any,
    max_n_succ_stages: Any,
    objective: str,
    choice: str | Slicer,
) -> tuple[float, Solution | None]:
    shape = (num_layers, num_layers, len(submeshes), num_configs)
    costs = np.asarray(costs, dtype=np.float64)
    if costs.shape != shape:
        raise ValueError(f"compute_cost is {costs.shape}, but must be {shape}: (layers, layers, submeshes, configs)")
    chosen = choose_slicer(choice)
    problem = SlicingProblem(
        costs_s=costs,
        submesh_sizes=np.array([math.prod(submesh) for submesh in submeshes]),
        num_devices=num_devices,
        num_micro_batches=num_micro_batches,
        max_n_succ_stages=max_n_succ_stages,
        objective=objective,
    )
    sliced = chosen.slice(problem)
    if not sliced.found:
        _log.warning("%s found no stages: %s", chosen, why_none(problem) or "but there are some; take 'dynamic'")
        return math.inf, None
    return sliced.cost_s, [((s.first, s.last + 1), s.submesh, s.config) for s in sliced.stages]


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

    The schedule isn't among the arguments, so memory is counted for 1F1B. Returns seconds of one micro-batch, forward
    and backward, of each stage of layers i..j on each of S submeshes with each of C configs, shape (L, L, S, C),
    infinite where there is none; and how many stages may follow it, of the same shape (None in inference).
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
    return table.compute_costs_s, None if inference_mode else np.array(table.max_n_succ_stages)
