"""A layer's forward pass, backward pass and update as one program of the engine, as Alpa's pass sees a stage.

The optimizer is left out but for one operator for each parameter, which ties the layouts of a parameter, of its
gradient and of its state to each other: optimizers compute element by element.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import final

from jax import core

from alpa_dejavu.features._flatten import Flattener, Step, Value
from alpa_dejavu.features._fusion import Fusion
from alpa_dejavu.features._kinds import ALIASES, kind_of
from alpa_dejavu.sharding._from_jaxpr import Reader
from alpa_dejavu.sharding._gradients import results
from alpa_dejavu.sharding._layer_jaxprs import LayerJaxprs
from alpa_dejavu.sharding._operator import Operator
from alpa_dejavu.sharding._strategies import Facts
from alpa_dejavu.sharding._update_shares import update_sources


@final
@dataclasses.dataclass(frozen=True)
class Trained:
    """A parameter that is trained: operators by their place.

    Attributes:
        parameter, accumulator: what is kept of it.
        sums: the products and reductions that its gradient comes from.
        state_bytes: of its whole optimizer state.
    """

    parameter: int
    accumulator: int
    sums: tuple[int, ...]
    state_bytes: float


@final
@dataclasses.dataclass(frozen=True)
class Lifetime:
    """A value in memory: the operator by which it is cut, its whole bytes, and the steps in which it is there."""

    operator: int
    num_bytes: float
    first: int = 0
    last: int = 0


@final
@dataclasses.dataclass(frozen=True)
class LayerProgram:
    """One layer, or several as one; equal programs need to be solved once.

    Attributes:
        operators: the program.
        num_forward, num_backward: how many operators belong to the two passes; the rest to the update.
        parameters: the operators that are parameters of the model.
        trained: those that are trained.
        kept: what a micro-batch's forward pass makes that waits for the backward pass.
        inputs: of what the layer gets, what waits too.
        received, sent: operators whose results cross to the layers before, and after, in either pass.
        forward_records, backward_records: the operator behind each operator record of `features.layer_features`.
        update_records: for each operator record of the update, the parameter that it is about; -1 for none.
        forward_temporaries, backward_temporaries: what lives inside the passes.
    """

    operators: tuple[Operator, ...]
    num_forward: int
    num_backward: int
    parameters: tuple[int, ...]
    trained: tuple[Trained, ...]
    kept: tuple[Lifetime, ...]
    inputs: tuple[Lifetime, ...]
    received: tuple[int, ...]
    sent: tuple[int, ...]
    forward_records: tuple[int, ...]
    backward_records: tuple[int, ...]
    update_records: tuple[int, ...]
    forward_temporaries: tuple[Lifetime, ...]
    backward_temporaries: tuple[Lifetime, ...]

    @cached_property
    def facts(self) -> Facts:
        """What the engine needs to know of the program on every mesh."""
        return Facts.of(self.operators)

    def phase(self, operator: int) -> str:
        """The pass that an operator belongs to."""
        if operator < self.num_forward:
            return "forward"
        return "backward" if operator < self.num_forward + self.num_backward else "update"


def layer_program(layers: Sequence[LayerJaxprs]) -> LayerProgram:
    """The program of some layers in a row."""
    return _Builder(layers).build()


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Pass:
    """One jaxpr, flattened: its values and steps."""

    jaxpr: core.Jaxpr
    inputs: list[Value]
    outputs: list[Value]
    steps: list[Step]


@final
class _Builder:
    def __init__(self, layers: Sequence[LayerJaxprs]) -> None:
        self.layers = layers
        self.reader = Reader()
        self.values: dict[core.Var, Value] = {}

    def build(self) -> LayerProgram:
        """Forward passes in order, backward passes in the other order, then the updates."""
        reader = self.reader
        ahead, forward_records = self._passes([layer.forward for layer in self.layers])
        num_forward = len(reader.operators)
        backward = [layer.backward for layer in reversed(self.layers) if layer.backward is not None]
        back, backward_records = self._passes(backward)
        num_backward = len(reader.operators) - num_forward
        received, sent = self._crossing(ahead, back)
        kept, inputs = self._waiting()
        trained, update_records = self._update()
        return LayerProgram(
            operators=tuple(reader.operators),
            num_forward=num_forward,
            num_backward=num_backward,
            parameters=self._places(var for layer in self.layers for var in _ordered(layer)),
            trained=trained,
            kept=kept,
            inputs=inputs,
            received=received,
            sent=sent,
            forward_records=forward_records,
            backward_records=backward_records,
            update_records=update_records,
            forward_temporaries=self._temporaries(ahead),
            backward_temporaries=self._temporaries(back),
        )

    def _passes(self, jaxprs: Sequence[core.Jaxpr]) -> tuple[list[_Pass], tuple[int, ...]]:
        """Reads the jaxprs; also the operator of each operator record."""
        found, records = [], []
        for jaxpr in jaxprs:
            inputs = [self.values.setdefault(var, Value(var.aval)) for var in jaxpr.invars]
            for value in inputs:
                self.reader.source(value)
            flat = Flattener()
            outputs = flat.walk(jaxpr, inputs)
            start = len(self.reader.of_step)
            self.reader.read(flat.steps)
            for var, value in zip(jaxpr.outvars, outputs, strict=True):
                if isinstance(var, core.Var):
                    self.values.setdefault(var, value)
            places = self.reader.of_step[start:]
            found.append(_Pass(jaxpr, inputs, outputs, flat.steps))
            records += [
                place for place, step in zip(places, flat.steps, strict=True)
                if step.primitive not in ALIASES and step.outputs
            ]  # fmt: skip
        return found, tuple(records)

    def _places(self, variables: Iterable[core.Var]) -> tuple[int, ...]:
        """The operators behind variables, each once, in order."""
        return tuple(
            dict.fromkeys(self.reader.place(self.values[var]) for var in variables if var in self.values)
        )

    def _crossing(self, ahead: Sequence[_Pass], back: Sequence[_Pass]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What crosses to the layers before and after: forward it comes from before, backward from after."""
        shared = frozenset().union(*(layer.shared for layer in self.layers))
        sides: tuple[list[core.Var], list[core.Var]] = ([], [])
        known: set[core.Var] = set()
        for passes, enters, leaves in ((ahead, 0, 1), (back, 1, 0)):
            read = {var for one in passes for var in one.jaxpr.invars}
            made = {var for one in passes for var in results(one.jaxpr)}
            sides[enters].extend((read & shared) - made - known)
            sides[leaves].extend((made & shared) - read)
            known |= read | made
        order = {var: n for n, var in enumerate(self.values)}
        received, sent = (sorted(set(side), key=order.__getitem__) for side in sides)
        return self._places(received), self._places(sent)

    def _waiting(self) -> tuple[tuple[Lifetime, ...], tuple[Lifetime, ...]]:
        """What the backward pass reads of what forward made, and of what it got."""
        kept, inputs = [], []
        for layer in self.layers:
            if layer.backward is None:
                continue
            made = results(layer.forward)
            got = {var for var in layer.forward.invars if var not in layer.parameters}
            kept += [var for var in layer.backward.invars if var in made]
            inputs += [var for var in layer.backward.invars if var in got]
        entered = self._in_memory(inputs)
        return self._in_memory(kept, entered), entered

    def _in_memory(self, variables: Sequence[core.Var], but: Sequence[Lifetime] = ()) -> tuple[Lifetime, ...]:
        """What variables take of memory: a reshape shares its operand's; parameters and constants are there anyway."""
        reader = self.reader
        resident = {self.values[var] for layer in self.layers for var in layer.parameters if var in self.values}
        values = (self.values[var] for var in variables if var in self.values)
        roots = dict.fromkeys(reader.roots.get(value, value) for value in values)
        known = {one.operator for one in but}
        found = []
        for value in roots:
            place = reader.place(value)
            if value not in resident and place not in known and not reader.is_constant(place):
                found.append(Lifetime(place, value.num_bytes))
        return tuple(found)

    def _update(self) -> tuple[tuple[Trained, ...], tuple[int, ...]]:
        trained: dict[int, Trained] = {}
        records: list[int] = []
        for layer in self.layers:
            accumulators = {result: operand for operand, result in layer.accumulators.items()}
            for parameter, gradient in layer.gradients.items():
                if parameter not in self.values or gradient not in self.values:
                    continue
                place = self.reader.place(self.values[parameter])
                operand = accumulators.get(gradient)
                state = sum(Value(var.aval).num_bytes for var in layer.states.get(parameter, ()))
                made = self._trained(place, self.values[gradient], operand, state)
                trained.setdefault(place, made)
            if layer.update is not None:
                sources = update_sources(layer)
                records += [self._place_or(var) for var in sources]
        return tuple(trained.values()), tuple(records)

    def _place_or(self, var: core.Var | None) -> int:
        return -1 if var is None or var not in self.values else self.reader.place(self.values[var])

    def _trained(self, parameter: int, gradient: Value, operand: core.Var | None, state: float) -> Trained:
        reader, place = self.reader, self.reader.place(gradient)
        if operand is None:
            accumulator = reader.add("parameter", (), gradient)
            total = reader.add("elementwise", (accumulator, place), gradient, "add")
        else:
            accumulator, total = reader.place(self.values[operand]), place
        sums = _sums(reader.operators, place, accumulator)
        for index in sums:
            reader.operators[index] = dataclasses.replace(reader.operators[index], gradient=True)
        reader.operators.append(_output(reader.operators[total], total, accumulator))
        if reader.operators[parameter].shape == gradient.shape:
            updated = reader.add("elementwise", (parameter, total), gradient, "update")
            reader.operators.append(_output(reader.operators[updated], updated, parameter))
        return Trained(parameter, accumulator, sums, state)

    def _temporaries(self, passes: Sequence[_Pass]) -> tuple[Lifetime, ...]:
        found: list[Lifetime] = []
        start = 0
        for one in passes:
            kinds = [kind_of(step) for step in one.steps]
            fusion = Fusion(one.steps, kinds, one.inputs, one.outputs)
            held = {fusion.root(value) for value in (*one.inputs, *one.outputs)}
            last = {fusion.root(value): n for n, step in enumerate(one.steps) for value in step.inputs}
            for n, step in enumerate(one.steps):
                for value in step.outputs if step.primitive not in ALIASES else ():
                    if value in fusion.in_memory and value not in held:
                        place = self.reader.place(value)
                        found.append(Lifetime(place, value.num_bytes, start + n, start + last.get(value, n)))
            start += len(one.steps)
        return tuple(found)


def _ordered(layer: LayerJaxprs) -> list[core.Var]:
    """The layer's parameters in the order in which the passes take them."""
    taken = [*layer.forward.invars, *(layer.backward.invars if layer.backward is not None else ())]
    return [var for var in dict.fromkeys(taken) if var in layer.parameters]


def _output(operator: Operator, place: int, alias: int) -> Operator:
    return dataclasses.replace(operator, kind="output", operands=(place,), name="", attributes=None, alias=alias)


def _sums(operators: Sequence[Operator], place: int, accumulator: int) -> tuple[int, ...]:
    """The products and reductions that a gradient is added up from, element by element or moved about."""
    found, stack = [], [place]
    while stack:
        index = stack.pop()
        operator = operators[index]
        if operator.kind in ("dot", "convolution", "reduce"):
            found.append(index)
        elif operator.kind in ("transpose", "reshape") or operator.name in ("add", "convert", "multiply", "neg"):
            stack += [i for i in operator.operands if i != accumulator and operators[i].rank]
        elif operator.kind == "same_size" and len(operator.operands) == 1:
            stack += operator.operands
    return tuple(sorted(found))
