"""The walk ahead: some steps of the optimizer on estimated gradients, as far as the kernel is sure of them; and what
is known after a step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from alpa_dejavu.training.optex._history import GradientHistory, estimated, nearness, squared_length
from alpa_dejavu.training.optex._layout import GradientLayout
from alpa_dejavu.training.optex._posterior import FittedProcess, Seen, of_each, weights_at
from alpa_dejavu.training.optex.kernels import Kernel


class Walk(NamedTuple):
    """The points whose gradients a step needs.

    Attributes:
        points: a pytree like the parameters, leaves [N, *shape]: the parameters, and where the estimates lead to; from
            `count` on the parameters again.
        count: how many of them matter, at least 1.
        distances: from the history's, squared, shape [groups, N, T].
        weights: of the history's gradients in the estimate at each point, shape [groups, N, T]; zeros where there is
            none.
        expected: the error of the estimate at each point that the kernel expects, over the estimate's length, shape
            [N]; infinite where there is no estimate.
        scale: the length scale of each group.
        noise: the level of noise of each group, over the variance of gradients.
    """

    points: Any
    count: jax.Array
    distances: jax.Array
    weights: jax.Array
    expected: jax.Array
    scale: jax.Array
    noise: jax.Array


class _WalkPlace(NamedTuple):
    """Where a walk has come to."""

    count: jax.Array
    goes_on: jax.Array
    leaves: list[jax.Array]
    optimizer: Any
    near: jax.Array
    walk: Walk


def stays(params: Any, groups: int) -> Walk:
    """Returns the walk of one point, which needs no history."""
    none, ones = jnp.zeros((groups, 1, 0)), jnp.ones(groups)
    points = jax.tree_util.tree_map(lambda p: jnp.asarray(p)[None], params)
    return Walk(points, jnp.int32(1), none, none, jnp.full(1, jnp.inf), ones, ones)


def walked(
    optimizer: optax.GradientTransformation, kernel: Kernel, layout: GradientLayout, history: GradientHistory,
    seen: Seen, process: FittedProcess, noise: Any, params: Any, moments: Any, parallel: int, trust: float,
) -> Walk:  # fmt: skip
    """Returns the walk of up to `parallel` points.

    Args:
        optimizer, kernel, trust: as `optex` takes them.
        layout, history: of the parameters, points and gradients.
        seen, process, noise: those of each group, leaves [groups, ...].
        params, moments: where it begins, and the optimizer's state there.
        parallel: how many points at most.
    """
    begin, tree = jax.tree_util.tree_flatten(params)
    groups, size = seen.reference.shape

    def reference(leaves: Any) -> Any:
        picked, begun = layout.picked(leaves), layout.picked(begin)
        return layout.by_group([squared_length(a - b) for a, b in zip(picked, begun, strict=True)])

    def step(place: _WalkPlace) -> _WalkPlace:
        walk, at = place.walk, place.count - 1
        weights, variance = of_each(
            lambda *group: weights_at(kernel, *group), seen, process, place.near, reference(place.leaves)
        )
        length = jnp.einsum("gi,gij,gj->", weights, seen.products, weights)
        expected = jnp.sqrt(jnp.sum(variance) / length)
        gradient = [e.astype(p.dtype) for e, p in zip(estimated(layout, history, weights), begin, strict=True)]
        point = jax.tree_util.tree_unflatten(tree, place.leaves)
        updates, moments = optimizer.update(jax.tree_util.tree_unflatten(tree, gradient), place.optimizer, point)
        leaves = jax.tree_util.tree_leaves(optax.apply_updates(point, updates))
        near = nearness(layout, history, leaves)
        # Not so of NaN, which an empty history gives, either.
        goes_on = (expected <= trust) & jnp.all(jnp.isfinite(near))
        new = jax.tree_util.tree_unflatten(tree, [jnp.where(goes_on, a, b) for a, b in zip(leaves, begin, strict=True)])
        return _WalkPlace(place.count + goes_on, goes_on, leaves, moments, near, walk._replace(
            points=jax.tree_util.tree_map(lambda kept, x: kept.at[place.count].set(x), walk.points, new),
            distances=walk.distances.at[:, place.count].set(jnp.where(goes_on, near, 0)),
            weights=walk.weights.at[:, at].set(jnp.where(jnp.isfinite(weights), weights, 0)),
            expected=walk.expected.at[at].set(jnp.where(jnp.isnan(expected), jnp.inf, expected)),
        ))  # fmt: skip

    points = jax.tree_util.tree_map(lambda p: jnp.broadcast_to(p, (parallel, *jnp.shape(p))), params)
    none = jnp.zeros((groups, parallel, size))
    walk = Walk(points, jnp.int32(1), none.at[:, 0].set(seen.reference), none, jnp.full(parallel, jnp.inf),
                process.scale, noise)  # fmt: skip
    place = _WalkPlace(jnp.int32(1), jnp.any(seen.is_known), begin, moments, seen.reference, walk)
    place = jax.lax.while_loop(lambda p: p.goes_on & (p.count < parallel), step, place)
    return place.walk._replace(count=place.count)


class OptExState(NamedTuple):
    """The state between steps; a pytree of arrays, for checkpoints too.

    Attributes:
        optimizer: the state of the optimizer inside.
        history: points and their gradients; None where one point is evaluated at a time.
        scale: the length scale of each group.
        noise: of each group: the variance of a gradient by its replicas, or the level that was fitted.
        steps: how many there were.
        dropped: how many gradients weren't finite.
        lost: how many points haven't arrived.
    """

    optimizer: Any
    history: GradientHistory | None
    scale: jax.Array
    noise: jax.Array
    steps: jax.Array
    dropped: jax.Array
    lost: jax.Array


class StepReport(NamedTuple):
    """How a step went.

    Attributes:
        loss: at the parameters where it began.
        losses: at all points, shape [N]; NaN where none was evaluated.
        walked: how many points were evaluated.
        kept: how many of them have a part in the new parameters, the dropped ones among them; 0: they are the old ones.
        dropped: how many gradients weren't finite.
        lost: how many points haven't arrived.
        expected: the error of the estimate at each point that the kernel expected, over the estimate's length, [N].
        errors: the error of the estimate at each point over the true gradient's length, shape [N]; NaN where there is
            none. On the picked coordinates, as `expected`.
        cosines: of the angle between both, shape [N].
    """

    loss: jax.Array
    losses: jax.Array
    walked: jax.Array
    kept: jax.Array
    dropped: jax.Array
    lost: jax.Array
    expected: jax.Array
    errors: jax.Array
    cosines: jax.Array


def judged(
    history: GradientHistory, walk: Walk, products: jax.Array, among: jax.Array, is_valid: jax.Array
) -> tuple[Any, Any]:
    """The errors and cosines of a walk's estimates, by products of gradients alone, shape [N] each."""
    lengths = jnp.sum(jnp.diagonal(among, axis1=1, axis2=2), axis=0)
    told = jnp.einsum("gnt,gnt->n", walk.weights, products)
    own = jnp.einsum("gni,gij,gnj->n", walk.weights, history.products, walk.weights)
    is_there = is_valid & jnp.isfinite(walk.expected)
    errors = jnp.sqrt(jnp.maximum(own - 2 * told + lengths, 0) / lengths)
    cosines = told / jnp.sqrt(own * lengths)
    return jnp.where(is_there, errors, jnp.nan), jnp.where(is_there, cosines, jnp.nan)
