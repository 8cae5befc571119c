"""A traced step cut into layers: a forward, a backward and an update jaxpr each."""

from __future__ import annotations

import dataclasses
import functools
import graphlib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np
from jax import lax

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu._util.jax_api import core, new_jaxpr
from alpa_dejavu.layers._chain import Chain, chain_of
from alpa_dejavu.layers._cluster import EPS, EquationClusters
from alpa_dejavu.layers._jaxprs import (
    Opened,
    calling,
    equation_of,
    inlined,
    jaxpr_of,
    live_equations,
    named,
    on_names,
    primitives_in,
    renamed,
    variables,
)
from alpa_dejavu.layers._trace import TracedStep
from alpa_dejavu.layers.features.structure import stable_structure

REMAT = ("none", "layer")


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LayeredStep:
    """A train step cut into L layers: each layer's forward, backward and update jaxpr, which share variables.

    Attributes:
        forward: the forward jaxpr of each of the L layers, in order.
        backward: the backward jaxpr of each layer, in the same order; empty for inference. A layer in which nothing is
            differentiated has one without equations.
        updates: the jaxpr of the optimizer's update of each layer, None where it has none; empty for inference. Updates
            may take each other's results, both ways.
        accumulators: for each operand of the backward jaxprs that a gradient is added to, the result that is their sum.
        data: the operands of the forward jaxprs that are part of the batch, or computed from it.
        gradients: for each trained operand its accumulated gradients, one from each layer that uses it.
        results: the variables of the forward jaxprs that the step takes besides, such as the loss.
        constants: the numbers of operands that the step closes over.
    """

    forward: tuple[core.Jaxpr, ...]
    backward: tuple[core.Jaxpr, ...]
    updates: tuple[core.Jaxpr | None, ...]
    accumulators: Mapping[core.Var, core.Var]
    data: frozenset[core.Var]
    gradients: Mapping[core.Var, tuple[core.Var, ...]] = dataclasses.field(default_factory=dict)
    results: frozenset[core.Var] = frozenset()
    constants: Mapping[core.Var, Any] = dataclasses.field(default_factory=dict)


def most_layers(traced: TracedStep, wanted: int) -> int:
    """Returns the largest number of layers, up to `wanted`, into which Alpa's rule may cut a step's loss, which asks
    for enough matrix products in each. A loss with marks has as many layers as these make, whatever is wanted.
    """
    if traced.marks:
        return len(traced.marks)
    return next((n for n in range(min(wanted, len(traced.loss.eqns)), 1, -1) if traced.clusters.possible(n)), 1)


def cut_into_layers(traced: TracedStep, num_layers: int | str, *, remat: str = "none", eps: float = EPS) -> LayeredStep:
    """Cuts a traced train step into layers: the loss by the rule of Alpa's `AutoLayerOption`, then the update.

    Args:
        traced: the train step.
        num_layers: the number of layers; "auto": the largest number of which no layer takes more bytes from earlier
            layers than with two layers. Where the step has marks, their number or "auto".
        remat: "none": a backward pass takes what the forward pass has kept; "layer": it computes its layer's forward
            pass again, and only the layer's operands are kept.
        eps: how much more than the average of the layers' operations a layer may have, as a share of that.

    Raises:
        ValueError: the loss has too few equations for so many layers, or an option isn't known.
    """
    if remat not in REMAT:
        raise ValueError(f"remat is {remat!r}, but must be one of {', '.join(map(repr, REMAT))}")
    if isinstance(num_layers, str) and num_layers != "auto":
        raise ValueError(f"num_layers is {num_layers!r}, but must be a number or 'auto'")
    clusters = traced.clusters if eps == EPS else EquationClusters(traced.loss.eqns, eps)
    if traced.marks:
        ends = traced.marks
        if num_layers not in ("auto", len(ends)):
            raise ValueError(
                f"num_layers is {num_layers}, but must be {len(ends)}, as many as are marked in {traced.name}; leave "
                "the number of layers out"
            )
    else:
        ends = clusters.cut(clusters.best_number() if isinstance(num_layers, str) else num_layers).ends
    number = len(ends)
    rows = _rows(traced, ends)
    if traced.update is None:
        results = frozenset(variables(traced.loss.outvars))
        return LayeredStep(tuple(rows), (), (), {}, traced.data, results=results, constants=traced.constants)
    with collector_paused():
        pieces = [[row] for row in rows] if remat == "layer" else _pieces(traced, ends, clusters.products)
        chain = chain_of(rows, pieces, traced.gradients, traced.loss.outvars[0], remat == "layer")
    owners = {var: n for n in range(number - 1, -1, -1) for var in rows[n].invars if var in traced.gradients}
    owners.update((gradient, n) for gradients in chain.gradients.values() for n, gradient in gradients)
    updates = divide_update(_on_gradients(traced.update, traced.gradients, chain), owners, number)
    accumulated = {var: tuple(gradient for _, gradient in pairs) for var, pairs in chain.gradients.items()}
    results = frozenset(variables([named(chain.names, atom) for atom in traced.loss.outvars]))
    return LayeredStep(
        chain.forward, chain.backward, updates, chain.accumulators, traced.data, accumulated, results, traced.constants
    )


def _rows(traced: TracedStep, ends: Sequence[int]) -> list[core.Jaxpr]:
    return [traced.row(start, end) for start, end in zip((0, *ends[:-1]), ends, strict=True)]


def _pieces(traced: TracedStep, ends: Sequence[int], products: Sequence[int]) -> list[list[core.Jaxpr]]:
    """Each layer cut before each of its products, wherever the layer itself begins."""
    seams = sorted({*ends, *products} - {0})
    rows = iter(_rows(traced, seams))
    return [[next(rows) for seam in seams if start < seam <= end] for start, end in zip((0, *ends), ends, strict=False)]


def _on_gradients(update: core.Jaxpr, gradients: Mapping[core.Var, core.Var], chain: Chain) -> core.Jaxpr:
    """The update on the gradients that the backward layers have accumulated, and on the forward layers' results.
    Gradients of what several layers use are added up; what no layer has a gradient for has zeros.
    """
    names = dict(chain.names)
    used = set(update.invars)
    first: list[core.JaxprEqn] = []

    def added(primitive: core.Primitive, operands: list[core.Atom], **params: Any) -> core.Var:
        first.append(equation_of(primitive, operands, gradient.aval, **params))
        return first[-1].outvars[0]

    for var, gradient in gradients.items():
        if gradient not in used:
            continue
        if var in chain.gradients:
            (_, total), *others = chain.gradients[var]
        else:
            zero = core.Literal(np.zeros((), gradient.aval.dtype), core.ShapedArray((), gradient.aval.dtype))
            total = added(lax.broadcast_in_dim_p, [zero], shape=gradient.aval.shape, broadcast_dimensions=())
            others = []
        for _, other in others:
            total = added(lax.add_p, [total, other])
        names[gradient] = total
    equations = [on_names(equation, names) for equation in update.eqns]
    return jaxpr_of([*first, *equations], [named(names, atom) for atom in update.outvars])


def step_digest(traced: TracedStep) -> str:
    """Returns a SHA-256 digest that steps share if they compute the same on the same shapes of data. Where a function
    has derivative rules of its own, as by `jax.custom_vjp`, it is of the backward pass, too.
    """
    jaxprs = [traced.loss, *([] if traced.update is None else [traced.update])]
    has_rules = any(name.startswith("custom_") for equation in traced.loss.eqns for name in primitives_in(equation))
    if traced.update is not None and has_rules:
        layered = cut_into_layers(traced, 1)
        jaxprs += [*layered.forward, *layered.backward]
    numbers: dict[core.Var, int] = {}

    def numbered(group: Iterable[core.Var]) -> list[int]:
        return [numbers.setdefault(var, len(numbers)) for var in group]

    content = (
        traced.batch,
        traced.num_micro_batches,
        [stable_structure(jaxpr) for jaxpr in jaxprs],
        numbered(var for jaxpr in jaxprs for var in variables([*jaxpr.invars, *jaxpr.outvars])),
        sorted(numbers[var] for var in traced.data if var in numbers),
        numbered(traced.gradients),
        numbered(traced.gradients.values()),
    )
    return hashlib.sha256(repr(content).encode()).hexdigest()


def divide_update(update: core.Jaxpr, owners: Mapping[core.Var, int], num_layers: int) -> tuple[core.Jaxpr | None, ...]:
    """Divides an update, the jaxpr of all that a step does after its gradients, among the layers, given that of each
    gradient and parameter; a layer that has no part in it gets None.

    An equation belongs to the layer of its largest operand that belongs to one. What works up the optimizer's state
    before it meets a gradient belongs to the layer that takes its result. A jitted function on several layers'
    gradients is divided itself. Layers' parts may take from each other, both ways: all make the norm of all gradients,
    and all take it.
    """
    parts = _parts(update, owners, update.outvars, {})
    return tuple(parts.get(n) for n in range(num_layers))


def _parts(
    update: core.Jaxpr,
    owners: Mapping[core.Var, int],
    results: Iterable[core.Atom],
    names: dict[core.Var, core.Atom],
    rest: int | None = None,
) -> dict[int, core.Jaxpr]:
    """The layers' parts of a jaxpr, of which some results are wanted; `names` is told what stands for its variables.
    What belongs to no layer, and is taken by none, belongs to `rest`; None: to the first layer.
    """
    equations, layers = _assigned(update, owners, names)
    wanted = {named(names, var) for var in variables(results)}
    alive = live_equations(equations, wanted)
    equations = [equation for equation, is_alive in zip(equations, alive, strict=True) if is_alive]
    layers = [layer for layer, is_alive in zip(layers, alive, strict=True) if is_alive]
    _assign_rest(equations, layers, min((n for n in layers if n >= 0), default=0) if rest is None else rest)
    makers = {var: n for equation, n in zip(equations, layers, strict=True) for var in equation.outvars}
    own: dict[int, list[core.JaxprEqn]] = {}
    for equation, n in zip(equations, layers, strict=True):
        own.setdefault(n, []).append(equation)
        wanted.update(var for var in variables(equation.invars) if makers.get(var, n) != n)
    return {
        n: jaxpr_of(part, [var for equation in part for var in equation.outvars if var in wanted])
        for n, part in own.items()
    }


def _assigned(
    update: core.Jaxpr, given_owners: Mapping[core.Var, int], names: dict[core.Var, core.Atom]
) -> tuple[list[core.JaxprEqn], list[int]]:
    """The equations, calls on several layers' arrays divided or inlined, and the layer of each; -1: not known yet."""
    owners = dict(given_owners)

    def sizes(equation: core.JaxprEqn) -> list[tuple[int, int]]:
        return [(var.aval.size, owners[var]) for var in variables(equation.invars) if var in owners]

    def is_shared(equation: core.JaxprEqn) -> bool:
        return len({layer for size, layer in sizes(equation) if size > 1}) > 1

    def opened(equation: core.JaxprEqn, function: core.Jaxpr) -> Opened:
        layers = [owners.get(atom, -1) if isinstance(atom, core.Var) else -1 for atom in equation.invars]
        ranks = {layer: n for n, layer in enumerate(sorted({*layers} - {-1}))}
        needed = tuple(not isinstance(var, core.DropVar) for var in equation.outvars)
        calls = _divided(function, tuple(ranks.get(layer, -1) for layer in layers), needed)
        return renamed(calls or function, equation.invars)

    equations: list[core.JaxprEqn] = []
    layers: list[int] = []
    for equation in inlined(update.eqns, names, is_shared, opened):
        layer = max(sizes(equation), default=(0, -1))[1]
        equations.append(equation)
        layers.append(layer)
        if layer >= 0:
            owners.update((var, layer) for var in equation.outvars)
    return equations, layers


@functools.lru_cache(maxsize=1024)
def _divided(function: core.Jaxpr, owners: tuple[int, ...], needed: tuple[bool, ...]) -> core.Jaxpr | None:
    """A function as a call for each owner of its operands (numbers, -1: nobody's), and one for what is nobody's; None
    if they would have to wait for each other. Only the results that are needed are computed.
    """
    owned = {var: owner for var, owner in zip(function.invars, owners, strict=True) if owner >= 0}
    wanted = [atom for atom, is_needed in zip(function.outvars, needed, strict=True) if is_needed]
    names: dict[core.Var, core.Atom] = {}
    parts = _parts(function, owned, wanted, names, -1)
    makers = {var: n for n, part in parts.items() for var in part.outvars}
    waits = {n: {makers[var] for var in part.invars if var in makers} for n, part in parts.items()}
    try:
        order = list(graphlib.TopologicalSorter(waits).static_order())
    except graphlib.CycleError:
        return None
    equations: list[core.JaxprEqn] = []
    of_calls: dict[core.Var, core.Atom] = {}
    for part in (parts[n] for n in order):
        calls, results = calling(part, [named(of_calls, var) for var in part.invars])
        of_calls.update(zip(part.outvars, results, strict=True))
        equations += calls
    return new_jaxpr(function.invars, (named(of_calls, named(names, v)) for v in function.outvars), equations)


def _assign_rest(equations: list[core.JaxprEqn], layers: list[int], default: int) -> None:
    """Gives equations without a layer the first that takes a result of theirs, or else the default one."""
    takers: dict[core.Var, int] = {}
    for n in range(len(equations) - 1, -1, -1):
        if layers[n] < 0:
            layers[n] = min((takers[var] for var in equations[n].outvars if var in takers), default=default)
        for var in variables(equations[n].invars):
            takers[var] = min(layers[n], takers.get(var, layers[n]))
