"""A layer's jaxprs, with what each of their operands and results is for."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import final

from jax import core

from alpa_dejavu.layers.features.flatten import Flattener, Value
from alpa_dejavu.layers.features.operator_kinds import ALIASES
from alpa_dejavu.layers.features.structure import structure, variables
from alpa_dejavu.sharding._gradients import Groups, Roles, pair_gradients, results


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LayerJaxprs:
    """One layer of a train step as forward, backward and update jaxprs, which share variables.

    Attributes:
        forward: the forward pass of one micro-batch.
        backward: the backward pass of one micro-batch; None in inference, and where nothing is trained.
        update: the optimizer's update of the layer; None where there is none.
        parameters: the operands of forward and backward that are parameters of the model.
        accumulators: for each operand of the backward jaxpr that a gradient is added to, the result that is their sum.
        gradients: for each trained parameter its gradient, a result of the backward jaxpr; the accumulated gradient,
            if gradients are accumulated.
        states: for each trained parameter the update's operands that are its optimizer state.
        shared: the variables that the layer takes from other layers or makes for them, forward and backward.
        batch_dims: the batch dimension of variables that the forward jaxpr takes, where it is known.
    """

    forward: core.Jaxpr
    backward: core.Jaxpr | None = None
    update: core.Jaxpr | None = None
    parameters: frozenset[core.Var] = frozenset()
    accumulators: Mapping[core.Var, core.Var] = dataclasses.field(default_factory=dict)
    gradients: Mapping[core.Var, core.Var] = dataclasses.field(default_factory=dict)
    states: Mapping[core.Var, tuple[core.Var, ...]] = dataclasses.field(default_factory=dict)
    shared: frozenset[core.Var] = frozenset()
    batch_dims: Mapping[core.Var, int] = dataclasses.field(default_factory=dict)


def layers_of(
    forward: Sequence[core.Jaxpr],
    backward: Sequence[core.Jaxpr] = (),
    updates: Sequence[core.Jaxpr | None] = (),
    accumulators: Mapping[core.Var, core.Var] | None = None,
    data: Collection[core.Var] | None = None,
    micro_batch: int | None = None,
    gradients: Mapping[core.Var, Collection[core.Var]] | None = None,
) -> list[LayerJaxprs]:
    """Puts the jaxprs of a train step together by layer, and says for each layer which variables are for what.

    Args:
        forward: the forward jaxprs of the L layers, in order; all jaxprs share variables.
        backward: the backward jaxpr of each layer, in the same order; empty for inference.
        updates: the jaxpr of the optimizer's update of each layer, None where it has none.
        accumulators: for each operand of the backward jaxprs that a gradient is added to, the result that is their sum.
        data: the operands that are part of the batch; all others that no layer makes are parameters. None: operands
            that an update takes are parameters, and those whose first dimension isn't `micro_batch`.
        micro_batch: the number of samples in a micro-batch.
        gradients: for each trained parameter the accumulated gradients that the backward jaxprs have for it. None: they
            are found from what the updates do.
    """
    added = dict(accumulators or {})
    chain = [*forward, *backward]
    makers = {var: n for n, jaxpr in enumerate(chain) for var in results(jaxpr)}
    changed = {var for update in updates if update is not None for var in update.invars}
    outside = {var for jaxpr in chain for var in jaxpr.invars if var not in makers and var not in added}
    parameters = {var for var in outside if _is_parameter(var, changed, data, micro_batch)}
    shared = {
        var
        for n, jaxpr in enumerate(chain)
        for var in jaxpr.invars
        if var in makers and (makers[var] - n) % len(forward)
    }
    between = {var for update in updates if update is not None for var in results(update)}
    roles = Roles(parameters, {var for jaxpr in backward for var in results(jaxpr)}, between | set(makers), gradients)
    batch = {var for var in data or () if var.aval.ndim and var.aval.shape[0] == (micro_batch or var.aval.shape[0])}
    groups, layers = Groups(), []
    for n, jaxpr in enumerate(forward):
        back = backward[n] if backward and backward[n].eqns else None
        update = updates[n] if updates else None
        own = [jaxpr] if back is None else [jaxpr, back]
        taken = dict.fromkeys(var for part in own for var in part.invars)
        made = {var for part in own for var in results(part)}
        of_layer = [var for var in taken if var in parameters]
        pairs, states = pair_gradients(
            groups.of(update) if update is not None else (), roles, of_layer, results(back) if back is not None else ()
        )
        layers.append(LayerJaxprs(
            jaxpr, back, update, parameters=frozenset(of_layer), gradients=pairs, states=states,
            accumulators={a: b for a, b in added.items() if b in made},
            shared=frozenset(shared & (taken.keys() | made)),
            batch_dims={var: 0 for var in jaxpr.invars if var in batch},
        ))  # fmt: skip
    return layers


def _is_parameter(
    var: core.Var, changed: Collection[core.Var], data: Collection[core.Var] | None, micro_batch: int | None
) -> bool:
    if data is not None:
        return var not in data
    rows = tuple(getattr(var.aval, "shape", ()))[:1]
    return var in changed or (micro_batch is not None and rows != (micro_batch,))


def layer_key(layer: LayerJaxprs) -> Hashable:
    """Returns a key that equal layers share: what their jaxprs compute, how they connect, what each variable is for."""
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


def update_sources(layer: LayerJaxprs) -> list[core.Var | None]:
    """Returns for each operation of a layer's optimizer update the parameter that it works on, or None.

    It is the parameter to which the first of its operands belongs that belongs to any. A parameter's gradient and
    optimizer state belong to it, and so do arrays that are computed by an operation that works on it.
    """
    assert layer.update is not None
    owners: dict[core.Var, core.Var] = {}
    for parameter, gradient in layer.gradients.items():
        owners.update(dict.fromkeys((parameter, gradient, *layer.states.get(parameter, ())), parameter))
    inputs = [Value(var.aval) for var in layer.update.invars]
    about = {value: owners[var] for var, value in zip(layer.update.invars, inputs, strict=True) if var in owners}
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
