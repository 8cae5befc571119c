"""All layers of a step as a `Model`: their operators, and the tensors that cross from one to another or stay.

The layers' jaxprs share variables: what one defines as a result another takes as an operand under the same variable, as
Alpa's layers do.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Hashable, Mapping, Sequence

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers._jaxprs import CHECKPOINTS, is_in, jaxpr_of, primitives_in, variables
from alpa_dejavu.layers.features._layer import LayerFeatures, layer_features
from alpa_dejavu.layers.features.flatten import Value
from alpa_dejavu.layers.features.structure import structure
from alpa_dejavu.problem import Layer, Model, Operators, RecomputingPasses, Tensor

_NOTHING = LayerFeatures(Operators.of([]), 0.0, ())


@collector_paused()
def describe(
    forward: Sequence[core.Jaxpr],
    backward: Sequence[core.Jaxpr] = (),
    updates: Sequence[core.Jaxpr | None] = (),
    accumulators: Mapping[core.Var, core.Var] | None = None,
    micro_batch: int | None = None,
    data: Collection[core.Var] | None = None,
) -> Model:
    """Turns the jaxprs of a step's layers into a `Model`: each layer's operators, and the tensors between layers.

    Args:
        forward: the forward jaxprs of the L layers, in order; all jaxprs share variables.
        backward: the backward jaxpr of each layer, in the same order; empty for inference.
        updates: the jaxpr of the optimizer's update of each layer, None where it has none.
        accumulators: for each operand of the backward jaxprs that a gradient is added to, the result that is their sum.
        micro_batch: the number of samples in a micro-batch. If `data` is None, an operand whose first dimension is that
            long, and that no update takes, is data. None: every operand is that no update takes.
        data: the operands that are data, where they are known: all others but accumulators are parameters.

    Raises:
        ValueError: without layers, or if there aren't as many backward layers or updates as layers.
    """
    num_layers = len(forward)
    for name, jaxprs in (("backward layers", backward), ("updates", updates)):
        if jaxprs and len(jaxprs) != num_layers:
            raise ValueError(f"there are {num_layers} layers but {len(jaxprs)} {name}; each layer has one")
    chain = [*forward, *reversed(backward)]
    added = accumulators or {}
    updated = {var for update in updates if update is not None for var in update.invars}
    roles = _roles(chain, updated, frozenset(added), micro_batch, data)
    parameters = frozenset(var for var, role in roles.items() if role == "parameter")
    features_of = functools.partial(
        _described, parameters=parameters, accumulators=added, gradients=updated.union(added.values())
    )
    had = {var for jaxpr in forward for var in (*jaxpr.invars, *variables(jaxpr.outvars))}
    passed = had.intersection(var for jaxpr in backward for var in jaxpr.invars).difference(parameters)
    between = frozenset(var for jaxpr in forward for var in jaxpr.invars).difference(parameters)
    asked_for = updated.union(between, (var for jaxpr in forward for var in jaxpr.outvars if not is_in(var, passed)))
    layers = []
    for n, first in enumerate(forward):
        second, passes, again = backward[n] if backward and backward[n].eqns else None, None, False
        if second is not None:
            handed_on = jaxpr_of(first.eqns, [var for var in first.outvars if is_in(var, asked_for)])
            both = jaxpr_of([*first.eqns, *second.eqns], second.outvars)
            passes = _recomputing(
                features_of(handed_on, kept=between, in_order=True), features_of(both, recalled=between, in_order=True)
            )
            again = _recomputes(second, passes.backward)
        ahead = features_of(first, kept=passed, in_order=again)
        back = features_of(second, recalled=passed, in_order=again)
        layers.append(Layer(
            name=f"layer {n}",
            forward=ahead.operators,
            backward=_repeating(back.operators, passes.backward) if passes is not None and again else back.operators,
            update=features_of(updates[n] if updates else None).operators,
            forward_temporary_bytes=ahead.temporary_bytes,
            backward_temporary_bytes=back.temporary_bytes,
            exchanged_bytes=ahead.exchanged_bytes,
            recomputing=passes,
        ))  # fmt: skip
    return Model(tuple(layers), tuple(_tensors(chain, updates, roles)), training=bool(backward))


def _recomputes(backward: core.Jaxpr, after_forward: Operators) -> bool:
    """Whether a backward pass, given also as operators after the forward pass, computes a part of that again."""
    if (after_forward.repeated & after_forward.is_product).any():
        return True
    checkpoints = any(not primitives_in(equation).isdisjoint(CHECKPOINTS) for equation in backward.eqns)
    return checkpoints and after_forward.repeats


@functools.lru_cache(maxsize=1024)
def _recomputing(forward: LayerFeatures, both: LayerFeatures) -> RecomputingPasses:
    """A layer's passes of which the backward one begins with the forward one, given the forward one alone and this."""
    count, records = len(forward.operators), both.operators.records
    again, back = Operators.of(records[:count]), Operators.of(records[count:])
    temporary_bytes = max(forward.temporary_bytes, both.temporary_bytes)
    return RecomputingPasses(forward.operators, again, back, temporary_bytes)


@functools.lru_cache(maxsize=1024)
def _repeating(own: Operators, after_forward: Operators) -> Operators:
    """The operators of a backward pass, marked as they are after the forward pass where they repeat its own."""
    marks = after_forward.repeated.tolist()
    records = [dataclasses.replace(record, repeated=mark) for record, mark in zip(own.records, marks, strict=True)]
    return Operators.of(records)


_features: dict[Hashable, LayerFeatures] = {}
"""The features of all jaxprs described so far: other cuts of a model have many layers in common, and its update is the
same for a micro-batch of any size."""


def _described(
    jaxpr: core.Jaxpr | None,
    parameters: Collection[core.Var],
    accumulators: Collection[core.Var],
    gradients: Collection[core.Var],
    recalled: Collection[core.Var] = (),
    kept: Collection[core.Var] = (),
    in_order: bool = False,
) -> LayerFeatures:
    """The features of a jaxpr, once in a process for all that are alike, given what `layer_features` is."""
    if jaxpr is None:
        return _NOTHING
    places = (
        *(_places(jaxpr.invars, chosen) for chosen in (parameters, accumulators, recalled)),
        *(_places(jaxpr.outvars, chosen) for chosen in (gradients, kept)),
    )
    key = structure(jaxpr), places, in_order
    if key not in _features:
        _features[key] = layer_features(jaxpr, parameters, accumulators, gradients, recalled, kept, in_order)
    return _features[key]


def _places(atoms: Sequence[core.Atom], chosen: Collection[core.Var]) -> tuple[int, ...]:
    return tuple(n for n, atom in enumerate(atoms) if is_in(atom, chosen))


def _roles(
    chain: Sequence[core.Jaxpr],
    updated: Collection[core.Var],
    accumulators: frozenset[core.Var],
    micro_batch: int | None,
    data: Collection[core.Var] | None,
) -> Mapping[core.Var, str]:
    """Returns the role of everything that the layers take from outside of the chain."""
    inside: set[core.Var] = set()
    roles: dict[core.Var, str] = {}
    for jaxpr in chain:
        for var in jaxpr.invars:
            if var in inside or var in roles:
                continue
            if var in accumulators:
                roles[var] = "gradient"
            elif data is not None:
                roles[var] = "input" if var in data else "parameter"
            elif var in updated or (micro_batch is not None and Value(var.aval).shape[:1] != (micro_batch,)):
                roles[var] = "parameter"
            else:
                roles[var] = "input"
        inside.update(variables(jaxpr.outvars))
    return roles


def _tensors(
    chain: Sequence[core.Jaxpr], updates: Sequence[core.Jaxpr | None], roles: Mapping[core.Var, str]
) -> list[Tensor]:
    num_layers = len(updates) or len(chain)
    producers: dict[core.Var, int] = {}
    users: dict[core.Var, list[int]] = {}
    for position, jaxpr in enumerate(chain):
        for var in dict.fromkeys(jaxpr.invars):
            users.setdefault(var, []).append(position)
        producers.update((var, position) for var in variables(jaxpr.outvars))
    tensors = []
    for var, positions in users.items():
        role = roles.get(var, "activation")
        if role == "gradient":
            positions = sorted({p if p < num_layers else 2 * num_layers - 1 - p for p in positions})
        producer = -1 if role != "activation" else producers[var]
        tensors.append(Tensor(Value(var.aval).num_bytes, role, producer, tuple(positions)))
    kept: dict[core.Var, set[int]] = {}
    updated = {var for update in updates if update is not None for var in variables(update.outvars)}
    for layer, update in enumerate(updates):
        for var in update.invars if update is not None else ():
            if var not in producers and var not in users and var not in updated:
                kept.setdefault(var, set()).add(layer)
    tensors += [Tensor(Value(var.aval).num_bytes, "optimizer", -1, tuple(sorted(where))) for var, where in kept.items()]
    return tensors
