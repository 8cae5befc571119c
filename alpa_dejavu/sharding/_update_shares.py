"""Which parameter each step of an optimizer's update is about: the step is divided as that parameter is."""

from __future__ import annotations

from jax import core

from alpa_dejavu.layers.features.flatten import Flattener, Value
from alpa_dejavu.layers.features.operator_kinds import ALIASES
from alpa_dejavu.sharding._layer_jaxprs import LayerJaxprs


def update_sources(layer: LayerJaxprs) -> list[core.Var | None]:
    """Returns for each operator record of a layer's update the parameter that it is about, None where it is about none.

    Parameters, gradients and states are about themselves; what is made of them is about the first operand's of the same
    shape.
    """
    assert layer.update is not None
    owners: dict[core.Var, core.Var] = {}
    for parameter, gradient in layer.gradients.items():
        owners.update(dict.fromkeys((parameter, gradient, *layer.states.get(parameter, ())), parameter))
    inputs = [Value(var.aval) for var in layer.update.invars]
    about = {
        value: owners[var] for var, value in zip(layer.update.invars, inputs, strict=True) if var in owners
    }
    flat = Flattener()
    flat.walk(layer.update, inputs)
    found: list[core.Var | None] = []
    for step in flat.steps:
        owner = next((about[value] for value in step.inputs if value in about), None)
        for value in step.outputs:
            if owner is not None and value.shape:
                about[value] = owner
        if step.primitive not in ALIASES and step.outputs:
            found.append(owner)
    return found
