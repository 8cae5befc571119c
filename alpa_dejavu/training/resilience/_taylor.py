"""Taylor's sum of the loss for the change of parameters that each unit's fault is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.training.resilience._subject import Subject
from alpa_dejavu.training.resilience.faults import Fault
from alpa_dejavu.training.resilience.parts import Parts

__all__ = ["taylor"]


def taylor(subject: Subject, parts: Parts, faulty: Fault, second: bool) -> NDArray[np.float64]:
    """Returns the change of the loss for each unit by its gradient, and by half of its curvature if wanted."""
    key = jax.random.PRNGKey(0)

    def loss(params: Any) -> Any:
        return subject.judge(subject.apply_fn(params, subject.inputs), subject.targets)

    def change(hit: Any) -> Any:
        made = faulty.faulty(subject.params, parts, hit, key)
        return jax.tree_util.tree_map(jnp.subtract, made, subject.params)

    def along(one: Any, other: Any) -> Any:
        products = jax.tree_util.tree_map(lambda a, b: jnp.sum(a * b), one, other)
        return sum(jax.tree_util.tree_leaves(products))

    @jax.jit
    def each(units: Any) -> Any:
        gradient = jax.grad(loss)(subject.params)

        def score(unit: Any) -> Any:
            delta = change(jnp.arange(parts.count) == unit)
            first = along(gradient, delta)
            if not second:
                return first
            curved = jax.jvp(jax.grad(loss), (subject.params,), (delta,))[1]
            return first + along(curved, delta) / 2

        return jax.lax.map(score, units)

    return np.asarray(each(jnp.arange(parts.count)), float)
