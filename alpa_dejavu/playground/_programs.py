"""A problem's and an optimizer's compiled functions on flat vectors of parameters."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from alpa_dejavu.playground._alike import Alike
from alpa_dejavu.playground.job import Problem

__all__ = ["Programs", "programs"]


class Programs(NamedTuple):
    """Compiled functions on flat parameters: a gradient, several at once, losses of samples, an update, held-out
    figures, a first state; and from flat parameters to a pytree.
    """

    gradient: Any
    gradients: Any
    losses: Any
    update: Any
    score: Any
    state: Any
    tree: Any


def programs(problem: Problem, chosen: Any, later: bool = False) -> Programs:
    """Returns the programs of a problem and an optimizer, compiled once for all simulations with functions that do the
    same, such as those of two problems of one name, or of two optimizers made with the same settings.

    Args:
        problem: the problem.
        chosen: the optimizer; None: gradient descent at a rate of 0.1.
        later: whether gradients are of the loss that comes later.
    """
    loss = problem.later.loss if later and problem.later is not None else problem.loss
    return _compiled(Alike((problem.init, loss, problem.accuracy, chosen)))


@functools.lru_cache(maxsize=32)
def _compiled(functions: Alike) -> Programs:
    import jax
    import optax
    from jax.flatten_util import ravel_pytree

    init, loss, accuracy, chosen = functions.all
    optimizer = optax.sgd(0.1) if chosen is None else chosen
    _, tree = ravel_pytree(init(jax.random.PRNGKey(0)))

    def gradient(params: Any, inputs: Any, targets: Any) -> Any:
        return ravel_pytree(jax.grad(loss)(tree(params), (inputs, targets)))[0]

    def updated(params: Any, state: Any, values: Any) -> Any:
        changes, after = optimizer.update(tree(values), state, tree(params))
        return ravel_pytree(optax.apply_updates(tree(params), changes))[0], after

    def score(params: Any, inputs: Any, targets: Any) -> Any:
        batch = inputs, targets
        share = accuracy(tree(params), batch) if accuracy else float("nan")
        return loss(tree(params), batch), share

    def losses(params: Any, inputs: Any, targets: Any) -> Any:
        return jax.vmap(lambda one, target: loss(tree(params), (one[None], target[None])))(inputs, targets)

    return Programs(jax.jit(gradient), jax.jit(jax.vmap(gradient)), jax.jit(losses), jax.jit(updated), jax.jit(score),
                     jax.jit(lambda params: optimizer.init(tree(params))), tree)  # fmt: skip
