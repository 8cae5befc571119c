"""Files of results: one that a release has written is read, and what was read is written as the same bytes."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from alpa_dejavu.training.initialization import parallel_initialize, read_result
from alpa_dejavu.training.initialization.result_file import write_result
from small_models import regression

GOLDEN = pathlib.Path(__file__).parent / "data" / "initialization-1.json"


def test_the_golden_file_is_what_is_written(tmp_path):
    import jax

    like = jax.eval_shape(regression()[0], jax.random.PRNGKey(0))
    path = write_result(read_result(GOLDEN, like), tmp_path / GOLDEN.name)
    assert path.read_bytes() == GOLDEN.read_bytes()
    (state,) = tmp_path.glob("*.npz")
    with np.load(state) as again, np.load(GOLDEN.with_name(state.name)) as golden:
        assert set(again) == set(golden)
        assert all((again[name] == golden[name]).all() for name in golden)


def test_methods_are_kept_and_what_releases_before_wrote_is_checked(tmp_path):
    import jax

    like = jax.eval_shape(regression()[0], jax.random.PRNGKey(0))
    golden = read_result(GOLDEN, like)
    first, *rest = golden.curves
    carrying = dataclasses.replace(first, method="sobol")
    path = write_result(dataclasses.replace(golden, curves=(carrying, *rest)), tmp_path / "result.json")
    assert [curve.method for curve in read_result(path, like).curves[:2]] == ["sobol", ""]
    data = json.loads(path.read_text(encoding="utf-8"))
    data["candidates"][0]["rate"] = -1
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ValueError, match="rate is -1"):
        read_result(path, like)


def test_a_train_state_comes_back_and_trains_on():
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax
    from flax.training.train_state import TrainState

    inputs = np.random.default_rng(0).standard_normal((16, 3)).astype(np.float32)
    network = nn.Dense(2)

    def init_fn(key):
        params = network.init(key, inputs)["params"]
        return TrainState.create(apply_fn=network.apply, params=params, tx=optax.adam(0.05))

    def train_step(state, batch):
        def loss_fn(params):
            return jnp.mean((state.apply_fn({"params": params}, batch) - batch[:, :2]) ** 2)

        loss, gradients = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=gradients), loss, optax.global_norm(gradients)

    result = parallel_initialize(
        init_fn, train_step, lambda step: inputs, num_candidates=2, budget_steps=20, init="sobol", lanes=2
    )
    assert isinstance(result.state, TrainState)
    assert result.state.step == 20
    # The kernel alone is scaled, not the optimizer's moments, which look like it.
    assert len(result.curves[0].point) == 1
    after, loss, _ = train_step(result.state, inputs)
    assert after.step == 21
    assert loss < result.losses[0]
