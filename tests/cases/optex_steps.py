"""Steps of OptEx on a small network, whose batches have five features."""

import jax
import jax.numpy as jnp
import numpy as np


def network(draw):
    return {"a": draw.standard_normal((5, 8)).astype(np.float32), "b": np.zeros(8, np.float32)}


def loss(params, batch):
    return jnp.mean((jnp.tanh(batch @ params["a"] + params["b"]) - batch[:, :1]) ** 2)


def trained(side_by_side, evaluator, params, batches):
    state, reports = side_by_side.init(params), []
    for batch in batches:
        params, state, report = side_by_side.step(params, state, evaluator, batch[: side_by_side.parallel])
        reports.append(report)
    return params, state, reports


def assert_same(left, right, rtol=1e-4, atol=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), left, right)
