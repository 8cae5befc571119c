"""Losses at parameters moved by offsets, in which each parameter is moved where it is used.

A pipeline's layers are cut from the program in its order: what is added to all parameters at its beginning would belong
to the first layer, on whose devices the parameters of all layers would then lie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def loss_at_offsets(loss: Callable[[Any, Any], Any], params: Any, offsets: Any, batch: Any, factor: float = 1.0) -> Any:
    """Returns the loss of parameters plus a factor times offsets, pytrees of the same shapes, on a batch."""
    closed = jax.make_jaxpr(loss)(params, batch)
    leaves, moves = jax.tree_util.tree_leaves(params), jax.tree_util.tree_leaves(offsets)
    own = closed.jaxpr.invars[: len(leaves)]
    moved = {var: (leaf, move) for var, leaf, move in zip(own, leaves, moves, strict=True)}
    values = dict(zip(closed.jaxpr.invars[len(leaves) :], jax.tree_util.tree_leaves(batch), strict=True))
    values.update(zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def read(var: Any) -> Any:
        if isinstance(var, jax.core.Literal):
            return var.val
        # Anew at each use, as a parameter of several layers would be read in each.
        if var in moved:
            leaf, move = moved[var]
            return jnp.add(leaf, move if factor == 1 else factor * move)
        return values[var]

    for eqn in closed.jaxpr.eqns:
        functions, settings = eqn.primitive.get_bind_params(eqn.params)
        outputs = eqn.primitive.bind(*functions, *map(read, eqn.invars), **settings)
        values.update(zip(eqn.outvars, outputs if eqn.primitive.multiple_results else [outputs], strict=True))
    (result,) = map(read, closed.jaxpr.outvars)
    return result
