"""The estimate of gradients: a Gaussian process for one group of parameters, on small matrices alone.

The gradient at a point θ is estimated as k(θ, X) (K + σ² I)⁻¹ G, for the history's T points X and their gradients G.
All that it needs are the distances of points and the products of gradients: its cost doesn't depend on how many
parameters there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, cholesky

from alpa_dejavu.training.optex.kernels import Kernel

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, PyTree

_FIRST_JITTER, _MOST_JITTER = 1e-6, 1.0
_LEAST_PIVOT = 3e-6
"""Below that share of the largest one a pivot is what rounding has left of it: the matrix is taken to be singular."""


class Seen(NamedTuple):
    """The small matrices of a group's history: squared distances of points, products G Gᵀ of gradients, squared
    distances from the point where the step begins, and which slots hold a point.
    """

    distances: Float[Array, "T T"]
    products: Float[Array, "T T"]
    reference: Float[Array, " T"]
    is_known: Bool[Array, " T"]


class FittedProcess(NamedTuple):
    """A Gaussian process for given length scale and noise: the matrix K + σ² I, in which empty slots have a variance of
    1 and no more, its Cholesky factor, and the likeliest variance of a gradient, all coordinates together.
    """

    scale: Float[Array, ""]
    matrix: Float[Array, "T T"]
    factor: Float[Array, "T T"]
    amplitude: Float[Array, ""]


def of_each(function: Callable[..., Any], *rows: PyTree) -> PyTree:
    """Returns what a function of small matrices gives for each row of arrays: side by side, except on CPUs, where XLA
    would take seconds to compile a solver of many.
    """
    if jax.default_backend() == "cpu":
        return jax.lax.map(lambda row: function(*row), rows)
    return jax.vmap(function)(*rows)


def _covariances(kernel: Kernel, seen: Seen, scale: Float[Array, ""], noise: Float[Array, ""]) -> Float[Array, "T T"]:
    """K + σ² I, where σ² is the noise times the mean variance."""
    over = 1 / scale**2
    reference = seen.reference * over
    gram = kernel.covariance(seen.distances * over, reference[:, None], reference)
    gram = jnp.where(seen.is_known[:, None] & seen.is_known, gram, 0)
    mean = jnp.trace(gram) / jnp.maximum(jnp.sum(seen.is_known), 1)
    return gram + jnp.diag(jnp.where(seen.is_known, noise * mean, 1.0))


def fitted(kernel: Kernel, seen: Seen, scale: Float[Array, ""], noise: Float[Array, ""]) -> FittedProcess:
    """Returns the process; where its matrix is singular, with as much more noise as makes it regular."""
    matrix = _covariances(kernel, seen, scale, noise)
    mean = jnp.sum(jnp.where(seen.is_known, jnp.diag(matrix), 0)) / jnp.maximum(jnp.sum(seen.is_known), 1)
    more = jnp.diag(jnp.where(seen.is_known, mean, 0.0))

    def is_singular(carry: PyTree) -> Bool[Array, ""]:
        jitter, _, factor = carry
        pivots = jnp.where(seen.is_known, jnp.diag(factor) ** 2, jnp.inf)
        bad = ~jnp.all(jnp.isfinite(factor)) | (jnp.min(pivots) < _LEAST_PIVOT * jnp.max(jnp.diag(matrix)))
        return bad & (jitter < _MOST_JITTER)

    def jittered(carry: PyTree) -> PyTree:
        jitter = carry[0] * 10
        wider = matrix + jitter * more
        return jitter, wider, cholesky(wider, lower=True)

    begun = (jnp.asarray(_FIRST_JITTER / 10, matrix.dtype), matrix, cholesky(matrix, lower=True))
    _, matrix, factor = jax.lax.while_loop(is_singular, jittered, begun)
    return _process(seen, scale, matrix, factor)


def unmended(kernel: Kernel, seen: Seen, scale: Float[Array, ""], noise: Float[Array, ""]) -> FittedProcess:
    """Returns the process as `fitted` does, but with NaN where its matrix is singular: one to compare with others."""
    matrix = _covariances(kernel, seen, scale, noise)
    return _process(seen, scale, matrix, cholesky(matrix, lower=True))


def _process(
    seen: Seen, scale: Float[Array, ""], matrix: Float[Array, "T T"], factor: Float[Array, "T T"]
) -> FittedProcess:
    # Column by column on CPUs: for all at once OpenBLAS wakes threads, which spin for 0.1 s beside what comes next.
    solved = of_each(lambda column: cho_solve((factor, True), column), seen.products.T).T
    amplitude = jnp.trace(solved) / jnp.maximum(jnp.sum(seen.is_known), 1)
    return FittedProcess(jnp.asarray(scale), matrix, factor, jnp.maximum(amplitude, 0))


def log_likelihood(process: FittedProcess, seen: Seen) -> Float[Array, ""]:
    """Returns the gradients' log marginal likelihood by the likeliest amplitude, per coordinate, up to a constant."""
    count = jnp.sum(seen.is_known)
    logs = jnp.sum(jnp.where(seen.is_known, jnp.log(jnp.diag(process.factor)), 0))
    return -count / 2 * jnp.log(jnp.maximum(process.amplitude, jnp.finfo(jnp.float32).tiny)) - logs


def weights_at(
    kernel: Kernel, seen: Seen, process: FittedProcess, distances: Float[Array, " T"], reference: Float[Array, ""]
) -> tuple[Float[Array, " T"], Float[Array, ""]]:
    """Returns the weights k(θ, X) (K + σ² I)⁻¹ of G in the estimate at a point θ, and the estimate's variance, by the
    squared distances of the point from the history's and from the one where the step begins.
    """
    over = 1 / process.scale**2
    across = kernel.covariance(distances * over, reference * over, seen.reference * over)
    across = jnp.where(seen.is_known, across, 0)
    weights = cho_solve((process.factor, True), across)
    # One refinement: near points make a matrix whose solutions float32 has few digits of.
    weights = weights + cho_solve((process.factor, True), across - process.matrix @ weights)
    own = kernel.covariance(jnp.zeros_like(reference), reference * over, reference * over)
    return weights, process.amplitude * jnp.maximum(own - across @ weights, 0)
