"""A traced step's content as a digest: steps that have it in common are planned alike, in any process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from jax import core

from alpa_dejavu.layers._cut import cut_into_layers
from alpa_dejavu.layers._trace import TracedStep
from alpa_dejavu.layers.features.structure import stable_structure


def step_digest(traced: TracedStep) -> str:
    """The digest of what a step computes, how its parts hang together, and which of its operands are data.

    Where a function has derivatives of its own, its jaxpr doesn't say them: the backward pass tells then.
    """
    jaxprs = [traced.loss, *([] if traced.update is None else [traced.update])]
    if traced.update is not None and _has_rules(traced.loss):
        layered = cut_into_layers(traced, 1)
        jaxprs += [*layered.forward, *layered.backward]
    numbers: dict[core.Var, int] = {}
    wiring = [
        numbers.setdefault(atom, len(numbers))
        for jaxpr in jaxprs
        for atom in (*jaxpr.invars, *jaxpr.outvars)
        if isinstance(atom, core.Var)
    ]

    def places(found: Iterable[core.Var]) -> list[int]:
        return [numbers.setdefault(var, len(numbers)) for var in found]

    content = (
        traced.batch,
        traced.num_micro_batches,
        [stable_structure(jaxpr) for jaxpr in jaxprs],
        wiring,
        sorted(numbers[var] for var in traced.data if var in numbers),
        places(traced.gradients),
        places(traced.gradients.values()),
    )
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _has_rules(jaxpr: core.Jaxpr) -> bool:
    """Whether any of its equations has derivatives of its own."""
    return any(
        equation.primitive.name.startswith("custom_") or any(map(_has_rules, core.jaxprs_in_params(equation.params)))
        for equation in jaxpr.eqns
    )
