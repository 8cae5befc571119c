"""Pipelines on a Ray cluster of two CPU devices: every schedule, and stages found by measuring and by the costs."""

import alpa
import numpy as np
import pytest
from alpa.device_mesh import get_global_cluster
from alpa.pipeline_parallel.stage_construction import get_last_dp_result
from alpa.testing import assert_allclose, get_mlp_train_state_and_step

from alpa_dejavu.alpa.local_cluster import local_cluster

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def _cluster(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, local_cluster(devices=2):
        patch.chdir(tmp_path_factory.mktemp("profiles"))  # Alpa writes its profiles into the working directory
        yield


@pytest.fixture(autouse=True)
def _use_cluster():
    alpa.init("ray")
    yield
    alpa.shutdown()


def _train(stage_option, schedule="1f1b", remat=False):
    state, batch, step = get_mlp_train_state_and_step(batch_size=16, hidden_size=8, add_manual_pipeline_marker=True)
    method = alpa.PipeshardParallel(
        num_micro_batches=2,
        pipeline_schedule=schedule,
        layer_option=alpa.ManualLayerOption(remat_layer=remat),
        stage_option=stage_option,
    )
    parallel = alpa.parallelize(step, method=method, donate_argnums=())
    expected, actual = state, state
    for _ in range(2):
        expected, expected_loss = step(expected, batch)
        actual, loss = parallel(actual, batch)
        assert_allclose(expected.params, actual.params)
        assert_allclose(expected_loss, loss)


@pytest.mark.parametrize(("schedule", "remat"), [
    ("1f1b", True), pytest.param("gpipe", False, marks=pytest.mark.slow),
    pytest.param("1f1b_overlap_friendly", False, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_schedule_trains_as_one_device(schedule, remat):
    _train(alpa.UniformStageOption(2), schedule, remat)


@pytest.mark.slow
def test_stages_are_found_by_measuring_and_again_from_the_cache():
    _train(alpa.AutoStageOption())
    found = get_last_dp_result()
    alpa.shutdown()
    alpa.init("ray")
    _train(alpa.AutoStageOption(cached_profile_result=found[0]))
    assert get_last_dp_result()[1:3] == found[1:3]


@pytest.mark.slow
def test_stages_are_found_by_the_cost_model(tmp_path):
    database = get_global_cluster().profile_all(
        # By its whole path: a worker writes it, whose working directory is the one that Ray was started in.
        "default", 6, 6, max_fail_retry=1, cache_filename=str(tmp_path / "operators.pkl"), dot_range=(0, 64),
        mesh_size_choices=[(1, 1), (1, 2)],
    )  # fmt: skip
    assert (tmp_path / "operators.pkl").is_file()
    result = database.query("default", (1, 2))
    assert all(np.isfinite(seconds) for costs in result.all_reduce_cost_dict.values() for _, seconds in costs)
    database.save("database.pkl")
    _train(alpa.AutoStageOption(use_hlo_cost_model=True, profiling_database_filename="database.pkl"))
