"""Two real workers: the same run as in this process, also where one of them dies on the way."""

import contextlib
import os

import pytest

from alpa_dejavu.alpa.local_cluster import local_cluster
from alpa_dejavu.training.initialization import parallel_initialize
from small_models import regression


def test_workers_need_a_cluster():
    with pytest.raises(RuntimeError, match=r"isn't connected to Ray; call ray\.init\(\) first"):
        parallel_initialize(*regression(), num_candidates=4, budget_steps=32, workers=2)
    with pytest.raises(ValueError, match="worker_options has 1 mappings for 2 workers; give one for each, or one"):
        parallel_initialize(*regression(), num_candidates=4, budget_steps=32, workers=2, worker_options=[{}])


@pytest.mark.ray
def test_two_workers_give_what_none_give_and_one_that_dies_is_replaced(tmp_path):
    init_fn, train_step, batches = regression()
    options = {"num_candidates": 6, "budget_steps": 40, "lanes": 2, "checkpoint_steps": 4}
    alone = parallel_initialize(init_fn, train_step, batches, **options)
    driver, killed = os.getpid(), tmp_path / "killed"

    def batch(step):
        if step == 6 and os.getpid() != driver:
            with contextlib.suppress(FileExistsError):  # one worker alone dies
                killed.touch(exist_ok=False)
                os._exit(1)
        return batches[step % len(batches)]

    with local_cluster(devices=2):
        with pytest.raises(ValueError, match="9 workers need 9 CPU, but the Ray cluster has 8"):
            parallel_initialize(init_fn, train_step, batches, workers=9, **options)
        together = parallel_initialize(
            init_fn, train_step, batch, workers=2, checkpoints=tmp_path / "checkpoints", **options
        )
    assert killed.exists()
    assert together.restarts == 1
    assert together.chosen == alone.chosen
    for one, other in zip(together.curves, alone.curves, strict=True):
        assert (one.losses == other.losses).all()
        assert (one.relative_gradients == other.relative_gradients).all()
        assert one.why == other.why
    assert (together.state["params"]["matrix"] == alone.state["params"]["matrix"]).all()
    assert together.total_steps == alone.total_steps
