"""A flax TrainState with an optimizer that init_fn makes anew for each candidate."""

import numpy as np

from alpa_dejavu.training.initialization import parallel_initialize


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
