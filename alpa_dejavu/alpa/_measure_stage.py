"""Measures stages one by one: each is compiled for its submesh, and runs alone on one."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, final

from alpa_dejavu.alpa._stage_runners import StageProgram, StageRunner
from alpa_dejavu.costs.measured_memory import StageMeasurement
from alpa_dejavu.problem import StageChoice

_log = logging.getLogger("alpa_dejavu")


@final
class StageBench:
    """A bench that measures stages by a runner, which stays up; they are sharded and partitioned as for a plan that
    runs.

    `given` are the arguments of Alpa's `cluster_layers_and_slice_mesh`; `submeshes` are pairs (hosts, devices per
    host), each with its configs: pairs (logical mesh, auto-sharding options) or None.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        submeshes: Sequence[Sequence[int]],
        configs: Sequence[Sequence[Any]],
        runner: StageRunner,
    ) -> None:
        self._given, self._submeshes, self._configs, self._runner = arguments, submeshes, configs, runner

    def measured(self, stage: StageChoice) -> StageMeasurement | None:
        """Returns a stage's seconds for a micro-batch and peak of memory; None where that fails, which is logged."""
        try:
            return self._measured(stage)
        except Exception as error:  # whatever a stage fails by, planning goes on without it
            reason = str(error).strip().partition("\n")[0]
            _log.warning("%s can't be measured: %s: %s", stage, type(error).__name__, reason)
            self._runner.close()
            return None

    def _measured(self, stage: StageChoice) -> StageMeasurement | None:
        from alpa.pipeline_parallel import stage_profiling

        self._runner.start()
        logical_mesh, options = self._configs[stage.submesh][stage.config]
        config, defaults = _stage_config(self._given, stage), self._given["default_as_option"]
        _, compiled = stage_profiling.CompileWorker().compile_stage_for_profiling(
            stage.entry, config.compile_config, logical_mesh, dataclasses.replace(defaults, **options),
            self._given["num_micro_batches"],
        )  # fmt: skip
        if compiled is None:
            return None
        passes = zip(compiled.acc_grad_module_compile_outputs, config.module_profile_configs, strict=True)
        hosts, devices = map(int, self._submeshes[stage.submesh])
        runs = self._runner.run([StageProgram(*inputs, compiled.stage_plan) for inputs in passes], (hosts, devices))
        seconds = sum(run.seconds for run in runs)
        if not (math.isfinite(seconds) and seconds > 0):
            return None
        # Forward or backward, whichever needs more, and beside them the update's own.
        peak = max(run.peak_bytes for run in runs) + _update_bytes(config, compiled)
        return StageMeasurement(seconds, peak if math.isfinite(peak) and peak > 0 else None)


def _update_bytes(config: Any, compiled: Any) -> float:
    """Returns the bytes of what the optimizer alone keeps on a device, such as its moments."""
    from alpa.pipeline_parallel import stage_profiling

    shardings = compiled.apply_grad_input_sharding_protos
    alone = math.prod(compiled.stage_plan.logical_mesh_shape) == 1
    if config.apply_grad_config is None or (shardings is None and not alone):
        return 0.0
    shape = compiled.stage_plan.logical_mesh_shape
    _, sizes = stage_profiling.compute_apply_grad_invar_size(shardings, config.apply_grad_config, shape)
    return float(sum(sizes))


def _stage_config(arguments: Mapping[str, Any], stage: StageChoice) -> Any:
    """Returns the computations of a stage that Alpa compiles: its layers' passes, and their part of the optimizer."""
    from alpa.pipeline_parallel import stage_profiling

    layers, updates = arguments["layers"], arguments["jax_apply_layers"]
    forward = list(range(stage.first, stage.last + 1))
    inference = arguments["pipeline_schedule"] == "inference"
    last = len(layers) - 1
    parts = [forward] if inference else [forward, list(range(last - stage.last, last - stage.first + 1))]
    return stage_profiling.generate_stage_info(
        layers,
        parts,
        arguments["accumulator_mapping"],
        arguments["acc_grad_invars"],
        arguments["acc_grad_outvars"],
        f"stage_{stage.first}_{stage.last}",
        [] if inference else [updates[n] for n in forward if updates[n] is not None],
        arguments["apply_grad_global_info"],
    )
