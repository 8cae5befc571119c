"""A small network trained on digits, for `alpa-dejavu resilience`.

    cd examples
    alpa-dejavu resilience digits.resilient:plain --but out --bits float32 --html plain.html
    alpa-dejavu resilience digits.resilient:hardened --but out --html hardened.html

Each function returns what the command takes: a model, its parameters, and data to judge by. `residual` is a deeper one
with blocks, for the stages of a plan.
"""

from __future__ import annotations

from typing import Any

import jax
import optax

from alpa_dejavu.playground import problem
from alpa_dejavu.training.resilience import cross_entropy, find_parts, hardening
from alpa_dejavu.training.resilience.faults import Removed

STEPS, REMOVED = 1500, 0.15
WIDTH, BLOCKS = 32, 4
Subject = tuple[Any, Any, tuple[Any, Any]]


def plain() -> Subject:
    """A network of 64-32-10."""
    return _trained(0.0)


def hardened() -> Subject:
    """The same network, trained with other neurons removed in each step, its weights averaged over the last ones."""
    return _trained(REMOVED)


def residual() -> Subject:
    """A network of four residual blocks."""
    digits = problem("digits-mlp")
    keys = jax.random.split(jax.random.PRNGKey(1), BLOCKS + 2)
    start = {
        "in": jax.random.normal(keys[0], (64, WIDTH)) / 8,
        "blocks": [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys[2:]],
        "out": jax.random.normal(keys[1], (WIDTH, 10)) / WIDTH**0.5,
    }

    def apply(params: Any, inputs: Any) -> Any:
        made = inputs.reshape(len(inputs), 64) @ params["in"]
        for block in params["blocks"]:
            made = made + jax.nn.relu(made @ block)
        return made @ params["out"]

    params = hardening.hardened(apply, cross_entropy, start, digits.train, optax.adam(1e-3), steps=STEPS, batch=32)
    return apply, params, digits.held_out


def _trained(removed: float) -> Subject:
    digits = problem("digits-mlp")
    assert digits.logits is not None, "digits have classes"
    start = digits.init(jax.random.PRNGKey(1))
    drills = [hardening.Drill(Removed(), find_parts(start, but="out"), removed)] if removed else []
    params = hardening.hardened(
        digits.logits, cross_entropy, start, digits.train, optax.adam(3e-3), steps=STEPS, batch=32, drills=drills,
        averaged=0.2 if removed else 0.0, seed=1,
    )  # fmt: skip
    return digits.logits, params, digits.held_out
