"""Measures a stage through Alpa's own profiling workers: it is compiled for its submesh, and run alone on one."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from alpa_dejavu.costs.measured_memory import StageMeasurement
from alpa_dejavu.problem import StageChoice


def stage_measurer(
    given: Mapping[str, Any], submeshes: Sequence[Sequence[int]], configs: Sequence[Sequence[Any]]
) -> Callable[[StageChoice], StageMeasurement | None]:
    """Returns a function that measures a stage's seconds and memory, by running it in Alpa's profiling workers.

    Args:
        given: the arguments of Alpa's `cluster_layers_and_slice_mesh`, by name.
        submeshes: (hosts, devices per host) of each submesh.
        configs: for each submesh its configs, each a pair (logical mesh, auto-sharding options) or None.

    Returns:
        A function from a stage to the seconds of its forward and backward for one micro-batch, and its peak of memory;
        it returns None where the stage doesn't compile, or doesn't run.
    """
    from alpa import AutoStageOption
    from alpa.pipeline_parallel import stage_profiling

    def measured(stage: StageChoice) -> StageMeasurement | None:
        index = stage.entry
        hosts, devices = submeshes[stage.submesh]
        task = index, _stage_config(given, stage), configs[stage.submesh][stage.config]
        meshes = given["virtual_mesh"].slice_profiling_submeshes(int(hosts), int(devices))[:1]
        with contextlib.redirect_stdout(io.StringIO()):  # Alpa prints what it is about
            results = stage_profiling.distributed_profile_on_mesh(
                [task], meshes, given["num_micro_batches"], given["default_as_option"], AutoStageOption(), {}
            )
        if index not in results or not results[index].fully_profiled():
            return None
        seconds = float(sum(module.compute_cost for module in results[index].module_profile_results))
        if not (math.isfinite(seconds) and seconds > 0):
            return None
        return StageMeasurement(seconds, _peak_bytes(results[index]))

    return measured


def _peak_bytes(result: Any) -> float | None:
    """Returns the bytes that forward or backward allocates, whichever needs more, and beside them the update's own."""
    peak = max(float(module.peak_memory) for module in result.module_profile_results)
    peak += sum(map(float, result.initial_var_sizes))
    return peak if math.isfinite(peak) and peak > 0 else None


def _stage_config(given: Mapping[str, Any], stage: StageChoice) -> Any:
    """Returns the computations of a stage that Alpa compiles: its layers' passes, and their part of the optimizer."""
    from alpa.pipeline_parallel import stage_profiling

    layers, updates = given["layers"], given["jax_apply_layers"]
    forward = list(range(stage.first, stage.last + 1))
    inference = given["pipeline_schedule"] == "inference"
    last = len(layers) - 1
    parts = [forward] if inference else [forward, list(range(last - stage.last, last - stage.first + 1))]
    return stage_profiling.generate_stage_info(
        layers,
        parts,
        given["accumulator_mapping"],
        given["acc_grad_invars"],
        given["acc_grad_outvars"],
        f"stage_{stage.first}_{stage.last}",
        [] if inference else [updates[n] for n in forward if updates[n] is not None],
        given["apply_grad_global_info"],
    )
