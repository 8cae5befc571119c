"""One layer's jaxpr as operator records, with what stays inside it and what a tensor-parallel group must exchange."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import final

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers.features._strided import Strided
from alpa_dejavu.layers.features.flatten import Flattener, Step, Value
from alpa_dejavu.layers.features.fusion import Fusion
from alpa_dejavu.layers.features.operator_kinds import ALIASES, flop_of, kind_of
from alpa_dejavu.problem import Operator, Operators


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LayerFeatures:
    """The features of one layer's jaxpr: its operators, temporary bytes, and the bytes that tensor parallelism sums.

    Attributes:
        operators: a record of each operation of one run; operations that only rename or reshape have none.
        temporary_bytes: the peak of the bytes of live values that are neither the layer's operands nor its results.
        exchanged_bytes: for each product with a parameter, the bytes that a tensor-parallel group adds up: those of the
            smaller one of the product's activation and its result, an activation that enters several products once. For
            a transformer block that is Megatron's four all-reduces of the hidden state.

    References:
        Shoeybi et al., Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism, 2019.
    """

    operators: Operators
    temporary_bytes: float
    exchanged_bytes: tuple[float, ...]


def layer_features(
    jaxpr: core.Jaxpr,
    parameters: Collection[core.Var] = (),
    accumulators: Collection[core.Var] = (),
    gradients: Collection[core.Var] = (),
    recalled: Collection[core.Var] = (),
    kept: Collection[core.Var] = (),
    in_order: bool = False,
) -> LayerFeatures:
    """Derives the features of a pass of a layer for one micro-batch from its jaxpr: given those of its operands that
    are parameters, that gradients are added to, or that a forward pass kept, and those of its results that are
    (accumulated) gradients of parameters, or that a forward pass keeps. The record of an operation that no result needs
    has no figures. `in_order` says whether what loops read again counts, as `Fusion` has it.
    """
    inputs = [Value(var.aval) for var in jaxpr.invars]
    flat = Flattener()
    outputs = flat.walk(jaxpr, inputs)
    needed = _needed(flat.steps, outputs)
    alive = [_is_in(step, needed) for step in flat.steps]
    steps = list(itertools.compress(flat.steps, alive))
    kinds = [kind_of(step) for step in steps]
    asked, left = _named(jaxpr.invars, inputs, recalled), _named(jaxpr.outvars, outputs, kept)
    fusion = Fusion(steps, kinds, inputs, outputs, asked, left, in_order=in_order)
    strided = Strided(steps, kinds, fusion)

    weights = _made_from(steps, kinds, _named(jaxpr.invars, inputs, parameters))
    whole = _made_from(steps, kinds, [*weights, *_named(jaxpr.invars, inputs, accumulators)])
    own = _named(jaxpr.outvars, outputs, gradients)
    whole |= _made_into(steps, kinds, own)
    later, sooner = _needed(steps, own), _needed(steps, set(outputs).difference(own))
    repeated = _repeated(flat.steps) if in_order else [False] * len(alive)
    records = [
        _record(
            step, kind_of(step), fusion, strided, weights, whole,
            sooner.isdisjoint(step.outputs) and not later.isdisjoint(step.outputs), is_repeated,
        )
        if is_alive
        else _idle(step)
        for step, is_alive, is_repeated in zip(flat.steps, alive, repeated, strict=True)
        if step.primitive not in ALIASES and step.outputs
    ]  # fmt: skip
    outside = {fusion.root(value) for value in (*inputs, *outputs)}
    temporary = _temporary_bytes(steps, fusion, outside)
    return LayerFeatures(Operators.of(records), temporary, _exchanged(steps, kinds, fusion, weights))


_PLAIN = frozenset({bool, int, float, str, tuple})

_operator = functools.lru_cache(maxsize=1 << 16)(Operator)
"""Operators that are alike, as those of a model's blocks, are one object."""


def _named(atoms: Sequence[core.Atom], values: Sequence[Value], chosen: Collection[core.Var]) -> list[Value]:
    pairs = zip(atoms, values, strict=True)
    return [value for atom, value in pairs if not isinstance(atom, core.Literal) and atom in chosen]


def _record(
    step: Step, kind: str, fusion: Fusion, strided: Strided, weights: set[Value], whole: set[Value], by_weight: bool,
    repeated: bool,
) -> Operator:  # fmt: skip
    flop, transcendental = flop_of(step, kind)
    traffic = fusion.traffic(step, kind, whole)
    strided_bytes, strided_cache_bytes = strided.reads(step, kind)
    fused = step.params["kernel"] if kind == "attention" else None
    return _operator(
        kind=kind,
        primitive=step.primitive,
        input_shapes=fused.input_shapes if fused else tuple(value.shape for value in step.inputs),
        output_shapes=fused.output_shapes if fused else tuple(value.shape for value in step.outputs),
        dtype=step.inputs[1].dtype if fused else step.outputs[0].dtype,
        flop=flop,
        transcendental=transcendental,
        read_bytes=traffic.read,
        written_bytes=traffic.written,
        parameter_bytes=sum(value.num_bytes for value in step.inputs if value in weights),
        passed_bytes=traffic.passed,
        strided_bytes=strided_bytes,
        strided_cache_bytes=strided_cache_bytes,
        unbatched_flop=flop if kind in ("elementwise", "layout") and step.outputs[0] in whole else 0.0,
        unbatched_read_bytes=traffic.whole_read,
        unbatched_written_bytes=traffic.whole_written,
        count=step.trips,
        dilated=kind == "conv" and any(holes > 1 for holes in step.params["lhs_dilation"]),
        by_weight=by_weight,
        kernel=fused.text if fused else "",
        repeated=repeated,
    )


def _idle(step: Step) -> Operator:
    shapes = tuple(value.shape for value in step.inputs), tuple(value.shape for value in step.outputs)
    return _operator(kind_of(step), step.primitive, *shapes, step.outputs[0].dtype, 0.0)


def _repeated(steps: Sequence[Step]) -> list[bool]:
    """For each operation whether an earlier one computes the same."""
    names: dict[Value, Hashable] = {}
    first: dict[Hashable, int] = {}
    repeated = []
    for n, step in enumerate(steps):
        operands = tuple(names.get(value, value.shape if value.constant else value) for value in step.inputs)
        results = tuple((value.shape, value.dtype) for value in step.outputs)
        settings = str({name: value for name, value in step.params.items() if type(value) in _PLAIN})
        place = first.setdefault((step.primitive, operands, results, settings), n)
        repeated.append(place != n)
        own = ((place, number) for number in range(len(operands) + len(results)))
        names.update(zip(step.outputs, operands if step.primitive == "optimization_barrier" else own, strict=False))
    return repeated


def _needed(steps: Sequence[Step], results: Iterable[Value]) -> set[Value]:
    """Some values of a jaxpr, and all values that they are made from, in earlier trips of loops too."""
    needed, count = set(results), -1
    while len(needed) > count:
        count = len(needed)
        for step in reversed(steps):
            if _is_in(step, needed):
                needed.update(step.inputs)
    return needed


def _is_in(step: Step, needed: Collection[Value]) -> bool:
    """Whether a step makes a value that is needed, or what the next trip of its loop takes in the place of one."""
    follows = step.params.get("carried", step.params.get("repeats"))
    return follows in needed or any(value in needed for value in step.outputs)


def _temporary_bytes(steps: Sequence[Step], fusion: Fusion, outside: set[Value]) -> float:
    """The peak over the steps of what was written to memory inside the layer and is still to be read."""
    last_use: dict[Value, int] = {}
    for n, step in enumerate(steps):
        for value in step.inputs:
            last_use[fusion.root(value)] = n
    ending: dict[int, float] = {}
    live = peak = 0.0
    for n, step in enumerate(steps):
        for value in step.outputs if step.primitive not in ALIASES else ():
            if value in fusion.in_memory and value not in outside:
                live += value.num_bytes
                end = last_use.get(value, n)
                ending[end] = ending.get(end, 0.0) + value.num_bytes
        peak = max(peak, live)
        live -= ending.pop(n, 0.0)
    return peak


def _exchanged(steps: Sequence[Step], kinds: Sequence[str], fusion: Fusion, weights: set[Value]) -> tuple[float, ...]:
    payloads: list[float] = []
    entered: set[Value] = set()
    for step, kind in zip(steps, kinds, strict=True):
        if kind not in ("dot", "conv", "gather") or sum(value in weights for value in step.inputs[:2]) != 1:
            continue
        activation = fusion.root(step.inputs[1] if step.inputs[0] in weights else step.inputs[0])
        result = step.outputs[0].num_bytes
        if kind != "gather" and activation.num_bytes <= result:
            if activation in entered:
                continue
            entered.add(activation)
            result = activation.num_bytes
        payloads += [result] * int(step.trips)
    return tuple(payloads)


_LOOPS = ("elementwise", "layout")


def _made_from(steps: Sequence[Step], kinds: Sequence[str], sources: Iterable[Value]) -> set[Value]:
    """Some values of a jaxpr, and all values that are made only of them and constants, element by element."""
    derived = set(sources)
    for step, kind in zip(steps, kinds, strict=True):
        inputs = [value for value in step.inputs if not value.constant]
        if step.primitive in ALIASES:
            derived.update(b for a, b in zip(step.inputs, step.outputs, strict=False) if a in derived)
        elif inputs and kind in _LOOPS and derived.issuperset(inputs):
            derived.update(step.outputs)
    return derived


def _made_into(steps: Sequence[Step], kinds: Sequence[str], results: Iterable[Value]) -> set[Value]:
    """Some values, and all that they are made from element by element, as what is added to a gradient."""
    sources = set(results)
    for step, kind in zip(reversed(steps), reversed(kinds), strict=True):
        if step.primitive in ALIASES:
            pairs = zip(step.inputs, step.outputs, strict=False)
            sources.update(a for a, b in pairs if b in sources and not a.constant)
        elif kind in _LOOPS and not sources.isdisjoint(step.outputs):
            sources.update(value for value in step.inputs if not value.constant)
    return sources
