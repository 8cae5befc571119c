"""A stage that fails drops out of the search; the others stay."""

import types

import numpy as np
import pytest
from alpa.pipeline_parallel import stage_construction, stage_profiling
from ray.exceptions import RayActorError

from alpa_stock_jax.pipeline_profile_faults import StageNotCompiledError


def _pool_that_answers(answer):
    pool = stage_profiling.CompileWorkerPool.__new__(stage_profiling.CompileWorkerPool)
    pool.pool = types.SimpleNamespace(get_next_unordered=lambda timeout: answer)
    pool.is_shutdown = True
    return pool


def test_a_stage_that_was_not_compiled_is_an_error_that_the_driver_passes_over():
    assert _pool_that_answers((3, "output")).get_next_unordered() == (3, "output")
    with pytest.raises(RayActorError, match="stage 3") as caught:
        _pool_that_answers((3, None)).get_next_unordered()
    assert isinstance(caught.value, StageNotCompiledError)


def _stage(peak_memory):
    module = types.SimpleNamespace(peak_memory=peak_memory, available_memory=0)
    return types.SimpleNamespace(module_profile_results=[module, module], available_memory=0)


def test_a_failed_profile_allows_no_stage_after_it():
    *_, max_n_succ_stages = stage_profiling.get_merged_stages_memory_stats([_stage(np.inf)])
    assert max_n_succ_stages == -1
    _, peak, _, _, none = stage_profiling.get_merged_stages_memory_stats([_stage(np.inf)], inference_mode=True)
    assert peak == np.inf
    assert none is None


def test_a_search_can_follow_one_that_failed():
    mesh = types.SimpleNamespace(launched_physical_mesh_group=None)
    for _ in range(2):
        with pytest.raises(ValueError, match="Invalid pipeline stage option"):
            stage_construction.cluster_layers_and_slice_mesh(
                [], mesh, {}, [], [], 1, 1, [], (), "1f1b", None, "no option"
            )
