"""The conformance suites of kernels and evaluators: run any of them, ours or your own, through it.

They raise AssertionError with what is wrong, and return nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu.training.optex.evaluators import Evaluator
from alpa_dejavu.training.optex.kernels import Kernel

if TYPE_CHECKING:
    from jaxtyping import PyTree

    from alpa_dejavu.training._scope import Loss

__all__ = ["check_evaluator", "check_kernel"]


def check_kernel(kernel: Kernel, dimension: int = 5) -> None:
    """Checks that a kernel is one: covariances are symmetric and positive semidefinite, and no point has more with
    another one than both have with themselves. It runs under `jit`.
    """
    points = np.random.default_rng(0).standard_normal((12, dimension))
    between = ((points[:, None] - points) ** 2).sum(axis=-1).astype(np.float32)
    own = (points**2).sum(axis=-1).astype(np.float32)
    covariances = np.asarray(jax.jit(kernel.covariance)(between, own[:, None], own), np.float64)
    assert np.isfinite(covariances).all(), "covariances aren't finite"
    assert np.abs(covariances - covariances.T).max() <= 1e-5, "covariances aren't symmetric"
    least = np.linalg.eigvalsh(covariances).min()
    assert least >= -1e-4 * np.abs(covariances).max(), f"the matrix of covariances has an eigenvalue of {least}"
    most = np.sqrt(np.outer(np.diag(covariances), np.diag(covariances)))
    assert (covariances <= most + 1e-5).all(), "a point has more with another one than both with themselves"


def check_evaluator(evaluator: Evaluator, loss: Loss, params: PyTree, batches: PyTree) -> None:
    """Checks that an evaluator of a mean loss keeps its contract.

    Losses and gradients are those of `jax.value_and_grad` to six digits, each point's on its own batch, leaves [N,
    ...], and the same when they are asked for again. Of points that don't matter it may tell anything.
    """
    n = jax.tree.leaves(batches)[0].shape[0]
    draw = np.random.default_rng(0)
    points = jax.tree.map(
        lambda p: jnp.asarray(p + 0.1 * draw.standard_normal((n, *np.shape(p))), np.asarray(p).dtype), params
    )
    first, again = (evaluator.evaluate(points, batches, jnp.int32(n - 1)) for _ in range(2))
    reference = jax.jit(jax.value_and_grad(loss))
    for i in range(n - 1):
        value, gradient = reference(*jax.tree.map(lambda x, i=i: x[i], (points, batches)))
        np.testing.assert_allclose(first.losses[i], value, rtol=1e-5, err_msg=f"the loss of point {i}")
        for name, evaluated in (("gradient", first), ("gradient, asked for again,", again)):
            for leaf, right in zip(jax.tree.leaves(evaluated.gradients), jax.tree.leaves(gradient),
                                  strict=True):  # fmt: skip
                scale = max(float(np.abs(right).max()), 1e-30)
                apart = float(np.abs(np.asarray(leaf[i]) - np.asarray(right)).max()) / scale
                assert apart <= 1e-5, f"the {name} of point {i} is apart by {apart:.1e}"
    if first.has_arrived is not None:
        assert np.asarray(first.has_arrived)[: n - 1].all(), "a point hasn't arrived"
