"""The pipeline on one device equals the plain function."""
import alpa
import jax
import jax.numpy as jnp
import numpy as np
from alpa.parallel_method import LocalPipelineParallel


def test_stages_on_one_device_equal_the_plain_step():
    weights = {"first": jnp.full((4, 4), 0.1), "second": jnp.full((4, 4), 0.2)}
    batch = jnp.arange(8.0).reshape(2, 4)

    def loss_function(weights, batch):
        hidden = jnp.tanh(batch @ weights["first"])
        alpa.mark_pipeline_boundary()
        return jnp.mean((hidden @ weights["second"]) ** 2)

    def step(weights, batch):
        layered = alpa.pipeline_parallel.layer_construction.manual_layer_construction(loss_function)
        return jax.grad(layered)(weights, batch)

    parallel = alpa.parallelize(step, method=LocalPipelineParallel())
    found = parallel(weights, batch)
    expected = jax.grad(loss_function)(weights, batch)
    for name in weights:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)
