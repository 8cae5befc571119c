"""A layer's jaxprs, with what each of their operands and results is for.

Which gradient and which state belong to which parameter is found from what an optimizer's update does with them.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import final

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers.features.flatten import Flattener, Value
from alpa_dejavu.layers.features.operator_kinds import ALIASES
from alpa_dejavu.layers.features.structure import structure, variables


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LayerJaxprs:
    """One layer of a train step as forward, backward and update jaxprs, which share variables.

    Attributes:
        forward, backward: the passes of one micro-batch; backward is None in inference, and where nothing is trained.
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
    layers = []
    for n, jaxpr in enumerate(forward):
        back = backward[n] if backward and backward[n].eqns else None
        update = updates[n] if updates else None
        own = [jaxpr] if back is None else [jaxpr, back]
        operands = dict.fromkeys(var for part in own for var in part.invars)
        computed = {var for part in own for var in results(part)}
        of_layer = [var for var in operands if var in parameters]
        pairs, states = pair_gradients(
            groups_of(update) if update is not None else (), roles, of_layer, results(back) if back is not None else ()
        )
        layers.append(LayerJaxprs(
            jaxpr, back, update, parameters=frozenset(of_layer), gradients=pairs, states=states,
            accumulators={a: b for a, b in added.items() if b in computed},
            shared=frozenset(shared & (operands.keys() | computed)),
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

    def all_of(these: Iterable[core.Var]) -> tuple[int, ...]:
        return tuple(sorted(numbers[var] for var in these if var in numbers))

    def pairs(these: Mapping[core.Var, core.Var]) -> tuple[tuple[int | None, int | None], ...]:
        return tuple((numbers.get(a), numbers.get(b)) for a, b in these.items())

    return (
        (layer.backward is None, layer.update is None),
        tuple(structure(jaxpr) for jaxpr in jaxprs),
        wiring,
        all_of(layer.parameters),
        all_of(layer.shared),
        pairs(layer.accumulators),
        pairs(layer.gradients),
        tuple(sorted((numbers.get(var, -1), _num_bytes(states)) for var, states in layer.states.items())),
    )


def _num_bytes(states: Iterable[core.Var]) -> int:
    return sum(var.aval.size * var.aval.dtype.itemsize for var in states)


def update_sources(layer: LayerJaxprs) -> list[core.Var | None]:
    """Returns for each operation of a layer's optimizer update the parameter that it works on, or None.

    It is the parameter to which the first of its operands belongs that belongs to any. A parameter's gradient and
    optimizer state belong to it, and so do arrays that are computed by an operation that works on it.
    """
    assert layer.update is not None
    parameters = list(layer.gradients)
    numbers = {
        var: n
        for n, (parameter, gradient) in enumerate(layer.gradients.items())
        for var in (parameter, gradient, *layer.states.get(parameter, ()))
    }
    key = structure(layer.update), tuple([numbers.get(var, -1) for var in layer.update.invars])
    if key not in _sources:
        _sources[key] = _sources_of(layer.update, key[1])
    return [None if n < 0 else parameters[n] for n in _sources[key]]


_sources: dict[tuple[int, tuple[int, ...]], list[int]] = {}
"""The sources of updates that are alike, as those of one cut for micro-batches of any size: numbers of parameters."""


def _sources_of(update: core.Jaxpr, owners: Sequence[int]) -> list[int]:
    """For each operator record of an update the number of its owner, given those of the operands; -1 for none."""
    inputs = [Value(var.aval) for var in update.invars]
    about = {value: owner for owner, value in zip(owners, inputs, strict=True) if owner >= 0}
    flat = Flattener()
    flat.walk(update, inputs)
    sources = []
    for step in flat.steps:
        owner = next((about[value] for value in step.inputs if value in about), -1)
        if owner >= 0:
            about.update((value, owner) for value in step.outputs if value.shape)
        if step.primitive not in ALIASES and step.outputs:
            sources.append(owner)
    return sources


Pairs = tuple[dict[core.Var, core.Var], dict[core.Var, tuple[core.Var, ...]]]


def results(jaxpr: core.Jaxpr) -> set[core.Var]:
    """Returns the result variables that a jaxpr makes, without operands that it only hands on."""
    return set(variables(jaxpr.outvars)).difference(jaxpr.invars)


_alike_groups: dict[int, list[list[int]]] = {}


def groups_of(update: core.Jaxpr) -> list[list[core.Var]]:
    """Returns the array operands of an optimizer's update in groups of a parameter, its gradient and its state, each in
    the order of the operands.

    Operands are in one group if an array is computed from both; scalars don't count, since all parameters depend on the
    norm of all gradients. Updates that are alike are looked at once.
    """
    number = structure(update)
    if number not in _alike_groups:
        _alike_groups[number] = _groups(update)
    return [[update.invars[place] for place in group] for group in _alike_groups[number]]


def _groups(update: core.Jaxpr) -> list[list[int]]:
    inputs = [Value(var.aval) for var in update.invars]
    sources_of: dict[Value, frozenset[int]] = {
        value: frozenset((place,)) for place, value in enumerate(inputs) if value.shape
    }
    root = list(range(len(inputs)))

    def find(place: int) -> int:
        while root[place] != place:
            root[place] = place = root[root[place]]
        return place

    flat = Flattener()
    flat.walk(update, inputs)
    for step in flat.steps:
        reached = frozenset().union(*(sources_of.get(value, frozenset()) for value in step.inputs))
        for value in step.outputs:
            if reached and value.shape:
                sources_of[value] = reached
                first, *others = map(find, reached)
                for other in others:
                    root[find(other)] = find(first)
    groups: dict[int, list[int]] = {}
    for place, value in enumerate(inputs):
        if value.shape:
            groups.setdefault(find(place), []).append(place)
    return list(groups.values())


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Roles:
    """The variables of a train step that are parameters, gradients (results of the backward passes), or neither of them
    nor optimizer state, since the step computes them itself.

    `pairs` has for each parameter its gradients, one from each layer that uses it; None where they aren't known.
    """

    parameters: Collection[core.Var]
    gradients: Collection[core.Var]
    others: Collection[core.Var]
    pairs: Mapping[core.Var, Collection[core.Var]] | None = None


def pair_gradients(
    groups: Iterable[Sequence[core.Var]], roles: Roles, own: Iterable[core.Var], computed: Collection[core.Var]
) -> Pairs:
    """Returns two dictionaries for a layer: each trained parameter's gradient, and its optimizer state's variables.

    Where an update works on several parameters as one, gradients and states are dealt out by shapes, in order.

    Args:
        groups: the operands of the layer's update in groups of a parameter, its gradient and its state.
        roles: which variables are known to be parameters or gradients, or to be no optimizer state.
        own: the layer's parameters, in order.
        computed: the results of the layer's backward pass.
    """
    pairs: dict[core.Var, core.Var] = {}
    states: dict[core.Var, tuple[core.Var, ...]] = {}
    if roles.pairs is not None:
        for parameter in own:
            pairs.update((parameter, var) for var in roles.pairs.get(parameter, ()) if var in computed)
    for group in groups:
        sums = [var for var in group if var in roles.gradients and var in computed]
        if roles.pairs is None:
            pairs.update(_by_shape([var for var in group if var in roles.parameters], sums))
        mine = [parameter for parameter, gradient in pairs.items() if gradient in sums or parameter in group]
        rest = [
            var for var in group
            if var not in roles.parameters and var not in roles.gradients and var not in roles.others
        ]  # fmt: skip
        states.update(_dealt(rest, mine))
    return pairs, {parameter: states.get(parameter, ()) for parameter in pairs}


def _by_shape(parameters: Sequence[core.Var], gradients: Sequence[core.Var]) -> dict[core.Var, core.Var]:
    left, pairs = list(gradients), {}
    for parameter in parameters:
        match = next((var for var in left if _shape(var) == _shape(parameter)), None)
        if match is not None:
            left.remove(match)
            pairs[parameter] = match
    return pairs


def _dealt(rest: Sequence[core.Var], parameters: Sequence[core.Var]) -> dict[core.Var, tuple[core.Var, ...]]:
    """Returns each parameter's share of the states: those of its shape, and the largest one those of no one's."""
    if not parameters:
        return {}
    by_shape: dict[tuple[int, ...], list[core.Var]] = {_shape(var): [] for var in parameters}
    dealt: dict[core.Var, list[core.Var]] = {var: [] for var in parameters}
    for var in parameters:
        by_shape[_shape(var)].append(var)
    largest = max(parameters, key=lambda var: int(var.aval.size))
    met: collections.Counter[tuple[int, ...]] = collections.Counter()
    left = []
    for var in rest:
        alike = by_shape.get(_shape(var))
        if alike is None:
            left.append(var)
        else:
            dealt[alike[met[_shape(var)] % len(alike)]].append(var)
            met[_shape(var)] += 1
    dealt[largest] += left
    return {var: tuple(own) for var, own in dealt.items()}


def _shape(var: core.Var) -> tuple[int, ...]:
    return tuple(getattr(var.aval, "shape", ()))
