"""A message that never comes ends a step, with an error that says who waits for whom in what, and then Ray."""

import contextlib

import alpa
import numpy as np
import pytest
import ray
from alpa.testing import get_mlp_train_state_and_step

from alpa_dejavu.alpa.local_cluster import local_cluster

pytestmark = pytest.mark.ray


def _lose(worker, lost_reductions):
    """Has a worker lose all numbers of all-reduces, or all tiles, and wait for three seconds alone."""
    worker.tiles.timeout_s = 3.0
    keep = worker.tiles.mailbox.put

    def put(messages):
        reductions = {key for key in messages if any("SUM" in str(part) for part in key)}
        keep({key: message for key, message in messages.items() if (key in reductions) is not lost_reductions})

    worker.tiles.mailbox.put = put


def _train_with_losses(lost_reductions):
    alpa.init("ray")
    state, batch, _ = get_mlp_train_state_and_step(batch_size=16, hidden_size=8, add_manual_pipeline_marker=True)

    def step(state, batch):
        def loss(params):
            return ((state.apply_fn(params, batch["x"]) - batch["y"]) ** 2).mean()

        gradients = alpa.grad(loss)(state.params)
        norm = sum((leaf**2).sum() for leaf in alpa.util.tree_flatten(gradients)[0])
        return state.apply_gradients(grads=gradients), norm

    method = alpa.PipeshardParallel(
        num_micro_batches=2, layer_option=alpa.ManualLayerOption(), stage_option=alpa.UniformStageOption(2)
    )
    parallel = alpa.parallelize(step, method=method, donate_argnums=())
    _, norm = parallel(state, batch)
    assert np.asarray(norm) > 0
    executable = parallel.get_last_executable()
    ray.get(executable.mesh_group[1].workers[0].__ray_call__.remote(_lose, lost_reductions))
    parallel(state, batch)
    executable.sync()


def test_a_withheld_message_ends_the_step_and_ray():
    waits = r"mesh 1 .* waits for host 0 of mesh 0 \(.*\) in {}, for 3 s in vain, and host 0 of mesh 0 \(.*\) {};"
    receiving = r"instruction \d+ of \d+, which receives for stage \d"
    reducing = r"all-reduce 0 \(SUM\) of the update, between meshes 0, 1"
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(RuntimeError, match=waits.format(reducing, "is idle")))
        stack.enter_context(local_cluster(devices=2))
        with pytest.raises(RuntimeError, match=waits.format(receiving, f"waits for .* in {receiving}")):
            _train_with_losses(lost_reductions=False)
        alpa.shutdown()
        _train_with_losses(lost_reductions=True)
    assert not ray.is_initialized()
