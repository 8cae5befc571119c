"""The walk ahead: N - 1 steps of the optimizer on estimated gradients at most, as far as the kernel is sure of them;
and what is known after a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import optax

from alpa_dejavu.training.optex._history import GradientHistory, GradientLayout, estimated, nearness, squared_length
from alpa_dejavu.training.optex._posterior import FittedProcess, Seen, of_each, weights_at
from alpa_dejavu.training.optex.kernels import Kernel

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PyTree


class Walk(NamedTuple):
    """The points whose gradients a step needs.

    Attributes:
        points: the parameters, and where the estimates lead to; from `count` on the parameters again.
        count: how many of them matter, at least 1.
        distances: from the history's, squared.
        weights: of the history's gradients in the estimate at each point; zeros where there is none.
        expected: the error of the estimate at each point that the kernel expects, over the estimate's length; infinite
            where there is no estimate.
    """

    points: PyTree[Float[Array, "N ..."]]
    count: Int[Array, ""]
    distances: Float[Array, "groups N T"]
    weights: Float[Array, "groups N T"]
    expected: Float[Array, " N"]
    scale: Float[Array, " groups"]
    noise: Float[Array, " groups"]


class _WalkPlace(NamedTuple):
    """The point θ that a walk has come to: its leaves, the optimizer's state, and distances from the history's."""

    count: Int[Array, ""]
    goes_on: Bool[Array, ""]
    leaves: list[Float[Array, " ..."]]
    optimizer: PyTree
    near: Float[Array, "groups T"]
    walk: Walk


def stays(params: PyTree, groups: int) -> Walk:
    """Returns the walk of one point, which needs no history."""
    none, ones = jnp.zeros((groups, 1, 0)), jnp.ones(groups)
    points = jax.tree.map(lambda p: jnp.asarray(p)[None], params)
    return Walk(points, jnp.int32(1), none, none, jnp.full(1, jnp.inf), ones, ones)


def walked(
    optimizer: optax.GradientTransformation, kernel: Kernel, layout: GradientLayout, history: GradientHistory,
    seen: Seen, process: FittedProcess, noise: Float[Array, " groups"], params: PyTree, moments: PyTree,
    parallel: int, trust: float,
) -> Walk:  # fmt: skip
    """Returns the walk of up to N = `parallel` points from the parameters, where the optimizer has these moments.

    What is seen, the process and the noise are those of each group; optimizer, kernel and trust those of `optex`.
    """
    begin, tree = jax.tree.flatten(params)
    groups, size = seen.reference.shape

    def reference(leaves: list[Float[Array, " ..."]]) -> Float[Array, " groups"]:
        return layout.by_group([squared_length(a - b)
                                for a, b in zip(layout.picked(leaves), layout.picked(begin), strict=True)])  # fmt: skip

    def step(place: _WalkPlace) -> _WalkPlace:
        walk, at = place.walk, place.count - 1
        # The gradient at θ, estimated, and the error that the kernel expects of it.
        weights, variance = of_each(
            lambda *group: weights_at(kernel, *group), seen, process, place.near, reference(place.leaves)
        )
        length = jnp.einsum("gi,gij,gj->", weights, seen.products, weights)
        expected = jnp.sqrt(jnp.sum(variance) / length)
        gradient = [e.astype(p.dtype) for e, p in zip(estimated(layout, history, weights), begin, strict=True)]
        # The next θ, by a step of the optimizer.
        point = jax.tree.unflatten(tree, place.leaves)
        updates, moments = optimizer.update(jax.tree.unflatten(tree, gradient), place.optimizer, point)
        leaves = jax.tree.leaves(optax.apply_updates(point, updates))
        near = nearness(layout, history, leaves)
        # Not so of NaN, which an empty history gives, either.
        goes_on = (expected <= trust) & jnp.all(jnp.isfinite(near))
        new = jax.tree.unflatten(tree, [jnp.where(goes_on, a, b) for a, b in zip(leaves, begin, strict=True)])
        return _WalkPlace(place.count + goes_on, goes_on, leaves, moments, near, walk._replace(
            points=jax.tree.map(lambda kept, x: kept.at[place.count].set(x), walk.points, new),
            distances=walk.distances.at[:, place.count].set(jnp.where(goes_on, near, 0)),
            weights=walk.weights.at[:, at].set(jnp.where(jnp.isfinite(weights), weights, 0)),
            expected=walk.expected.at[at].set(jnp.where(jnp.isnan(expected), jnp.inf, expected)),
        ))  # fmt: skip

    points = jax.tree.map(lambda p: jnp.broadcast_to(p, (parallel, *jnp.shape(p))), params)
    none = jnp.zeros((groups, parallel, size))
    walk = Walk(points, jnp.int32(1), none.at[:, 0].set(seen.reference), none, jnp.full(parallel, jnp.inf),
                process.scale, noise)  # fmt: skip
    place = _WalkPlace(jnp.int32(1), jnp.any(seen.is_known), begin, moments, seen.reference, walk)
    place = jax.lax.while_loop(lambda p: p.goes_on & (p.count < parallel), step, place)
    return place.walk._replace(count=place.count)


class OptExState(NamedTuple):
    """The state between steps; a pytree of arrays, for checkpoints too.

    Attributes:
        history: points and their gradients; None where one point is evaluated at a time.
        scale, noise: the length scale of each group, and the variance of its gradient by its replicas, or the level
            that was fitted.
        steps, dropped, lost: how many steps there were, gradients that weren't finite, and points that haven't arrived.
    """

    optimizer: PyTree
    history: GradientHistory | None
    scale: Float[Array, " groups"]
    noise: Float[Array, " groups"]
    steps: Int[Array, ""]
    dropped: Int[Array, ""]
    lost: Int[Array, ""]


class StepReport(NamedTuple):
    """How a step went.

    Attributes:
        loss: at the parameters where it began.
        losses: at all points; NaN where none was evaluated.
        kept: how many of them have a part in the new parameters, the dropped ones among them; 0: they are the old ones.
        dropped: how many gradients weren't finite.
        lost: how many points haven't arrived.
        expected: the error of the estimate at each point that the kernel expected, over the estimate's length.
        errors: the error of the estimate at each point over the true gradient's length; NaN where there is none. On the
            picked coordinates, as `expected`.
    """

    loss: Float[Array, ""]
    losses: Float[Array, " N"]
    walked: Int[Array, ""]
    kept: Int[Array, ""]
    dropped: Int[Array, ""]
    lost: Int[Array, ""]
    expected: Float[Array, " N"]
    errors: Float[Array, " N"]
    cosines: Float[Array, " N"]


def judged(
    history: GradientHistory, walk: Walk, products: Float[Array, "groups N T"], among: Float[Array, "groups N N"],
    is_valid: Bool[Array, " N"],
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:  # fmt: skip
    """Returns the errors and cosines of a walk's estimates, by products of gradients alone."""
    lengths = jnp.sum(jnp.diagonal(among, axis1=1, axis2=2), axis=0)
    told = jnp.einsum("gnt,gnt->n", walk.weights, products)
    own = jnp.einsum("gni,gij,gnj->n", walk.weights, history.products, walk.weights)
    is_judged = is_valid & jnp.isfinite(walk.expected)
    errors = jnp.sqrt(jnp.maximum(own - 2 * told + lengths, 0) / lengths)
    cosines = told / jnp.sqrt(own * lengths)
    return jnp.where(is_judged, errors, jnp.nan), jnp.where(is_judged, cosines, jnp.nan)
