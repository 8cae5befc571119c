"""Layers that are alike: a key that two layers have in common if they differ in the names of their variables only."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from jax import core

from alpa_dejavu.layers.features.structure import structure
from alpa_dejavu.sharding._gradients import variables
from alpa_dejavu.sharding._layer_jaxprs import LayerJaxprs


def layer_key(layer: LayerJaxprs) -> Hashable:
    """The key of a layer: what its jaxprs compute, how they hang together, and what each variable is for."""
    jaxprs = [jaxpr for jaxpr in (layer.forward, layer.backward, layer.update) if jaxpr is not None]
    numbers: dict[core.Var, int] = {}
    wiring = tuple(
        numbers.setdefault(var, len(numbers))
        for jaxpr in jaxprs
        for var in variables([*jaxpr.invars, *jaxpr.outvars])
    )  # fmt: skip

    def all_of(found: Iterable[core.Var]) -> tuple[int, ...]:
        return tuple(sorted(numbers[var] for var in found if var in numbers))

    def pairs(found: Iterable[tuple[core.Var, core.Var]]) -> tuple[tuple[int | None, int | None], ...]:
        return tuple((numbers.get(a), numbers.get(b)) for a, b in found)

    return (
        (layer.backward is None, layer.update is None),
        tuple(structure(jaxpr) for jaxpr in jaxprs),
        wiring,
        all_of(layer.parameters),
        all_of(layer.shared),
        pairs(layer.accumulators.items()),
        pairs(layer.gradients.items()),
        tuple(sorted((numbers.get(var, -1), _num_bytes(states)) for var, states in layer.states.items())),
    )


def _num_bytes(found: Iterable[core.Var]) -> int:
    return sum(var.aval.size * var.aval.dtype.itemsize for var in found)
