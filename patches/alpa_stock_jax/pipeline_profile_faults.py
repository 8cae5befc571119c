"""A stage that can't be compiled or profiled drops out of the search of `AutoStageOption`, instead of ending it.

Alpa means it so: its workers answer None or an infinite cost. But the driver then asks None for its plan, adds up
profiles that aren't there, and turns a memory of infinity less infinity into an integer.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from ray.exceptions import RayActorError

from alpa_stock_jax._patch import Patch

_logger = logging.getLogger(__name__)
_STAGE_PROFILING = "alpa.pipeline_parallel.stage_profiling"


class StageNotCompiledError(RayActorError):
    """A compile worker lives, but has no executable for its stage: `compile_all` passes over such errors."""

    def __init__(self, stage_index: int) -> None:
        super().__init__()
        self._stage_index = stage_index

    def __str__(self) -> str:
        return f"stage {self._stage_index} of this submesh could not be compiled; see the worker's warning"


def _refuse_empty_outputs(module: ModuleType) -> None:
    pool = module.CompileWorkerPool
    get_next = pool.get_next_unordered

    @functools.wraps(get_next)
    def get_next_compiled(self: Any) -> Any:
        stage_index, output = get_next(self)
        if output is None:
            raise StageNotCompiledError(stage_index)
        return stage_index, output

    pool.get_next_unordered = get_next_compiled


def _drop_unprofiled_stages(module: ModuleType) -> None:
    profile_all = module.profile_all

    @functools.wraps(profile_all)
    def profile_all_that_run(
        stages: Any, compiled_outputs: Any, meshes: Any, num_micro_batches: Any, auto_stage_option: Any,
        profile_results: Any,
    ) -> dict[tuple[int, ...], Any]:
        results = profile_all(
            stages, compiled_outputs, meshes, num_micro_batches, auto_stage_option, profile_results
        )
        unprofiled = [index for index, result in results.items() if not result.fully_profiled()]
        if unprofiled:
            _logger.warning("no profile of the stages %s: they are left out of the search", unprofiled)
        return {index: result for index, result in results.items() if result.fully_profiled()}

    module.profile_all = profile_all_that_run  # type: ignore[attr-defined]


def _keep_failed_profiles_finite(module: ModuleType) -> None:
    merged_memory = module.get_merged_stages_memory_stats

    @functools.wraps(merged_memory)
    def merged_memory_or_none(profile_results: Sequence[Any], inference_mode: bool = False) -> Any:
        peaks = [module.peak_memory for result in profile_results for module in result.module_profile_results]
        if np.all(np.isfinite(peaks)):
            return merged_memory(profile_results, inference_mode)
        available = min(result.available_memory for result in profile_results)
        return available, np.inf, 0, 0, None if inference_mode else -1

    module.get_merged_stages_memory_stats = merged_memory_or_none  # type: ignore[attr-defined]


def _start_timers_anew(module: ModuleType) -> None:
    start = module._Timer.start

    @functools.wraps(start)
    def start_anew(self: Any, sync_func: Any = None) -> None:
        if self.started:
            self.start_times.pop()
            self.started = False
        start(self, sync_func)

    module._Timer.start = start_anew


PATCHES: tuple[Patch, ...] = (
    Patch(
        module=_STAGE_PROFILING,
        reason="a stage that can't be compiled is passed over (the driver asked None for its plan)",
        apply=_refuse_empty_outputs,
        expects={"CompileWorkerPool.get_next_unordered": ("self",), "compile_all": None},
    ),
    Patch(
        module=_STAGE_PROFILING,
        reason="a stage without a full profile is left out of the search (its missing profiles were added up)",
        apply=_drop_unprofiled_stages,
        expects={
            "profile_all": (
                "stages", "compiled_outputs", "meshes", "num_micro_batches", "auto_stage_option", "profile_results",
            )
        },
    ),
    Patch(
        module=_STAGE_PROFILING,
        reason="a stage whose profiling failed has no successors (infinity less infinity became an integer)",
        apply=_keep_failed_profiles_finite,
        expects={"get_merged_stages_memory_stats": ("profile_results", "inference_mode")},
    ),
    Patch(
        module="alpa.timer",
        reason="a timer that an error has left running starts anew (nothing could be compiled any more)",
        apply=_start_timers_anew,
        expects={"_Timer.start": ("self", "sync_func")},
    ),
)
