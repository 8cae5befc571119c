"""A perceptron trained for a step through Alpa, on a Ray cluster of two CPU devices."""

import alpa
import pytest
from alpa.testing import get_mlp_train_state_and_step

import alpa_dejavu
from alpa_dejavu.alpa.local_cluster import local_cluster


def check_trains_as_one_device(option):
    """Checks that a step by a stage option's plan gives what it gives on one device; takes out the hooks after it."""
    state, batch, step = get_mlp_train_state_and_step(batch_size=64, hidden_size=256, add_manual_pipeline_marker=True)
    method = alpa.PipeshardParallel(num_micro_batches=2, layer_option=alpa.ManualLayerOption(), stage_option=option)
    with local_cluster(devices=2):
        alpa.init("ray")
        try:
            expected, loss = step(state, batch)
            actual, found = alpa.parallelize(step, method=method, donate_argnums=())(state, batch)
            assert float(found) == pytest.approx(float(loss), rel=1e-4)
            assert actual.step == expected.step
        finally:
            alpa.shutdown()
            alpa_dejavu.uninstall()
