"""A problem's and an optimizer's compiled functions on flat vectors of parameters."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from alpa_dejavu.playground.job import Problem

__all__ = ["Programs", "programs"]


class Programs(NamedTuple):
    """Compiled functions on flat parameters: a gradient, several at once, an update, held-out figures, a first state;
    and from flat parameters to a pytree.
    """

    gradient: Any
    gradients: Any
    update: Any
    score: Any
    state: Any
    tree: Any


@functools.lru_cache(maxsize=8)
def programs(problem: Problem, chosen: Any) -> Programs:
    """Returns the programs of a problem and an optimizer, compiled once for all simulations."""
    import jax
    import optax
    from jax.flatten_util import ravel_pytree

    optimizer = optax.sgd(0.1) if chosen is None else chosen
    _, tree = ravel_pytree(problem.init(jax.random.PRNGKey(0)))

    def gradient(params: Any, inputs: Any, targets: Any) -> Any:
        return ravel_pytree(jax.grad(problem.loss)(tree(params), (inputs, targets)))[0]

    def updated(params: Any, state: Any, values: Any) -> Any:
        changes, after = optimizer.update(tree(values), state, tree(params))
        return ravel_pytree(optax.apply_updates(tree(params), changes))[0], after

    def score(params: Any, inputs: Any, targets: Any) -> Any:
        batch = inputs, targets
        share = problem.accuracy(tree(params), batch) if problem.accuracy else float("nan")
        return problem.loss(tree(params), batch), share

    return Programs(jax.jit(gradient), jax.jit(jax.vmap(gradient)), jax.jit(updated), jax.jit(score),
                     jax.jit(lambda params: optimizer.init(tree(params))), tree)  # fmt: skip
