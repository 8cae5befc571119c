"""The conformance suite of rules: run any rule, ours or your own, through it.

It raises AssertionError with what is wrong, and returns nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu.training.robust.rules import Aggregated, Evidence, Rule

if TYPE_CHECKING:
    from jaxtyping import PyTree

    from alpa_dejavu.training.robust._arrays import Gradients

__all__ = ["check_rule"]

_SHAPES = {"bias": (5,), "kernel": (4, 5)}


def check_rule(
    rule: Rule, replicas: int = 9, *, mean_where_equal: bool = True, translates: bool = True, scales: bool = True,
    permutes: bool = True,
) -> None:  # fmt: skip
    """Checks that a rule keeps its contract.

    Weights are finite and not below 0. NaN or infinity of one replica, or of all, stays out of the result, which is
    finite where one is as large as numbers get, too. The state of a first step is as zeros, has the same shapes ever
    after, and is a pytree of arrays that goes through a file. It runs under `jit`.

    Args:
        mean_where_equal: whether equal gradients give themselves.
        translates: whether a vector added to all gradients is added to the result.
        scales: whether a factor of all gradients is one of the result, be it 2^-80 or 2^80.
        permutes: whether the order of replicas doesn't matter.
    """
    gradients, evidence = _gradients(replicas), _evidence(replicas)
    aggregate = jax.jit(rule.aggregate)
    aggregated = aggregate(gradients, None, evidence)
    assert np.isfinite(aggregated.weights).all(), f"weights are {aggregated.weights}"
    assert (np.asarray(aggregated.weights) >= 0).all(), f"weights are {aggregated.weights}"
    _check_state(aggregate, gradients, evidence, aggregated)
    _check_not_finite(aggregate, replicas, evidence)
    _check_huge(aggregate, replicas, evidence)
    if permutes:
        order = np.random.default_rng(2).permutation(replicas)
        descent = np.asarray(evidence.descent)[order]
        other = aggregate(jax.tree.map(lambda x: x[order], gradients), None, evidence._replace(descent=descent))
        _same(other.gradient, aggregated.gradient, "the order of replicas matters")
    if translates:
        moved = aggregate(jax.tree.map(lambda x: x + 3, gradients), None, evidence)
        _same(moved.gradient, jax.tree.map(lambda x: x + 3, aggregated.gradient), "it doesn't move with all gradients")
    if scales:
        for factor in (4.0, 2.0**80, 2.0**-80):
            scaled = aggregate(jax.tree.map(lambda x, f=factor: f * x, gradients), None, evidence)
            _same(jax.tree.map(lambda x, f=factor: x / f, scaled.gradient), aggregated.gradient,
                  f"it doesn't grow with all gradients, times {factor:g}")  # fmt: skip
    if mean_where_equal:
        alike = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), gradients)
        _same(aggregate(alike, None, evidence).gradient, jax.tree.map(lambda x: x[0], gradients),
              "equal gradients don't give themselves")  # fmt: skip


def _check_state(
    aggregate: Callable[..., Aggregated], gradients: Gradients, evidence: Evidence, aggregated: Aggregated
) -> None:
    zeros = jax.tree.map(jnp.zeros_like, aggregated.state)
    _same(aggregate(gradients, zeros, evidence).gradient, aggregated.gradient, "a state of zeros isn't a first step's")
    leaves, tree = jax.tree.flatten(aggregated.state)
    assert all(hasattr(leaf, "dtype") for leaf in leaves), f"the state has {leaves}, not arrays alone"
    kept = jax.tree.unflatten(tree, [np.asarray(leaf) for leaf in leaves])
    second, again = (aggregate(gradients, state, evidence) for state in (aggregated.state, kept))
    _same(again.gradient, second.gradient, "a state that was in a file gives another result")
    shapes = [[(x.shape, x.dtype) for x in jax.tree.leaves(result.state)] for result in (aggregated, second)]
    assert shapes[0] == shapes[1], f"the state's shapes change: {shapes}"


def _check_not_finite(aggregate: Callable[..., Aggregated], replicas: int, evidence: Evidence) -> None:
    for value in (np.nan, np.inf, -np.inf):
        for last in (1, replicas):  # one replica, and all
            spoilt = jax.tree.map(lambda x, n=last, v=value: x.at[:n, 0].set(v), _gradients(replicas))
            state = None
            for _ in range(2):  # what isn't finite doesn't stay in the state either
                aggregated = aggregate(spoilt, state, evidence)
                state = aggregated.state
                finite = all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(aggregated.gradient))
                assert finite, f"{value} of {last} replicas gets into the result"
            after = aggregate(_gradients(replicas), state, evidence)
            finite = all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(after.gradient))
            assert finite, f"{value} of {last} replicas stays in the state"


def _check_huge(aggregate: Callable[..., Aggregated], replicas: int, evidence: Evidence) -> None:
    most = float(np.finfo(np.float32).max)
    spoilt = jax.tree.map(lambda x: x.at[0].set(jnp.nan).at[1].set(most).at[2].set(-most), _gradients(replicas))
    aggregated = aggregate(spoilt, None, evidence)
    for x in jax.tree.leaves((aggregated.gradient, aggregated.weights)):
        assert bool(jnp.isfinite(x).all()), f"{most:g} of one replica and {-most:g} of another one overflow"


def _gradients(replicas: int) -> Gradients:
    draw = np.random.default_rng(1)
    return {name: jnp.asarray(1 + draw.standard_normal((replicas, *shape)), jnp.float32)
            for name, shape in _SHAPES.items()}  # fmt: skip


def _evidence(replicas: int) -> Evidence:
    draw = np.random.default_rng(3)
    trusted = {name: jnp.ones(shape) for name, shape in _SHAPES.items()}
    return Evidence(jnp.asarray(draw.standard_normal(replicas), jnp.float32), trusted)


def _same(actual: PyTree, expected: PyTree, message: str) -> None:
    for leaf, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        scale = max(1.0, float(np.abs(other).max()))
        assert np.abs(np.asarray(leaf) - np.asarray(other)).max() <= 1e-4 * scale, message
