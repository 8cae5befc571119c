"""Building the program of some layers: their passes read one after the other, then what an update ties together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import final

from jax import core

from alpa_dejavu.layers.features.flatten import Flattener, Step, Value
from alpa_dejavu.layers.features.fusion import Fusion
from alpa_dejavu.layers.features.operator_kinds import ALIASES, kind_of
from alpa_dejavu.sharding._from_jaxpr import read_steps
from alpa_dejavu.sharding._gradients import results
from alpa_dejavu.sharding._layer_jaxprs import LayerJaxprs, update_sources
from alpa_dejavu.sharding._layer_program import LayerProgram, Lifetime, PassSteps, Trained
from alpa_dejavu.sharding._operator import Operator
from alpa_dejavu.sharding._writer import Writer


def layer_program(layers: Sequence[LayerJaxprs], batch_dims: Mapping[core.Var, int] | None = None) -> LayerProgram:
    """Builds the program of operators that the sharding engine solves for one or several consecutive layers.

    Args:
        layers: the jaxprs of each layer.
        batch_dims: the batch dimension of variables that the layers take, where it is known; that of the batch's arrays
            is known anyway.
    """
    known = dict(batch_dims or {})
    for layer in layers:
        known.update(layer.batch_dims)
    return _Builder(layers, known).build()


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
    def __init__(self, layers: Sequence[LayerJaxprs], batch_dims: Mapping[core.Var, int]) -> None:
        self.layers = layers
        self.batch_dims = batch_dims
        self.writer = Writer()
        self.values: dict[core.Var, Value] = {}

    def build(self) -> LayerProgram:
        """Builds the sharding engine's program of some layers from their jaxprs.

        It has the forward passes in order, the backward passes in the opposite order, then the optimizer's updates.
        """
        writer = self.writer
        ahead, forward_records, forward_steps = self._passes([layer.forward for layer in self.layers])
        num_forward = len(writer.operators)
        backward = [layer.backward for layer in reversed(self.layers) if layer.backward is not None]
        back, backward_records, backward_steps = self._passes(backward)
        num_backward = len(writer.operators) - num_forward
        received, sent = self._crossing(ahead, back)
        kept, inputs = self._waiting()
        trained, update_records = self._update()
        return LayerProgram(
            operators=tuple(writer.operators),
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
            results=tuple(writer.places.get(value, -1) for one in ahead for value in one.outputs),
            known_batch=self._known_batch(ahead),
            forward_steps=forward_steps,
            backward_steps=backward_steps,
        )

    def _known_batch(self, ahead: Sequence[_Pass]) -> tuple[tuple[int, int], ...]:
        """Returns the operators that forward passes take from outside, each with its known batch dimension."""
        made = {var for one in ahead for var in results(one.jaxpr)}
        found = {
            self.writer.place(self.values[var]): self.batch_dims[var]
            for one in ahead for var in one.jaxpr.invars if var in self.batch_dims and var not in made
        }  # fmt: skip
        return tuple(found.items())

    def _passes(self, jaxprs: Sequence[core.Jaxpr]) -> tuple[list[_Pass], tuple[int, ...], PassSteps]:
        """Reads the jaxprs; also the operator of each operator record, and all operations in order."""
        found, records = [], []
        starts: list[int] = []
        for jaxpr in jaxprs:
            inputs = [self.values.setdefault(var, Value(var.aval)) for var in jaxpr.invars]
            for value in inputs:
                self.writer.source(value)
            flat = Flattener(opens=True)
            outputs = flat.walk(jaxpr, inputs)
            start = len(self.writer.of_step)
            read_steps(self.writer, flat.steps)
            steps, firsts, products = _closed(flat)
            for var, value in zip(jaxpr.outvars, outputs, strict=True):
                if isinstance(var, core.Var):
                    self.values.setdefault(var, value)
            starts += [self.writer.starts[start + n] for n in firsts]
            found.append(_Pass(jaxpr, inputs, outputs, steps))
            records += [
                self.writer.of_step[start + n] for n, step in zip(products, steps, strict=True)
                if step.primitive not in ALIASES and step.outputs
            ]  # fmt: skip
        everything = tuple(step for one in found for step in one.steps)
        return found, tuple(records), PassSteps(everything, (*starts, len(self.writer.operators)), self.writer.places)

    def _places(self, variables: Iterable[core.Var]) -> tuple[int, ...]:
        """The operators behind variables, each once, in order."""
        return tuple(
            dict.fromkeys(self.writer.place(self.values[var]) for var in variables if var in self.values)
        )

    def _crossing(self, ahead: Sequence[_Pass], back: Sequence[_Pass]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the operators of what crosses the boundary before the layers, and of what crosses the boundary after.

        The forward passes take from the layers before and give to those after; the backward passes do the opposite.
        """
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
        """Returns the values that wait for the backward passes: those that forward passes made; and those they took,
        all of which a layer that is computed again keeps.
        """
        kept, inputs, read = [], [], []
        for layer in self.layers:
            if layer.backward is None:
                continue
            made = results(layer.forward)
            got = [var for var in layer.forward.invars if var not in layer.parameters]
            kept += [var for var in layer.backward.invars if var in made]
            inputs += got
            read += [var for var in layer.backward.invars if var in set(got)]
        return self._in_memory(kept, self._in_memory(read)), self._in_memory(inputs)

    def _in_memory(self, variables: Sequence[core.Var], but: Sequence[Lifetime] = ()) -> tuple[Lifetime, ...]:
        """Returns the values that some variables hold in memory, without those of `but`.

        A reshape shares its operand's memory. Parameters and constants are in memory anyway.
        """
        writer = self.writer
        resident = {self.values[var] for layer in self.layers for var in layer.parameters if var in self.values}
        values = (self.values[var] for var in variables if var in self.values)
        roots = dict.fromkeys(writer.roots.get(value, value) for value in values)
        known = {one.operator for one in but}
        found = []
        for value in roots:
            place = writer.place(value)
            if value not in resident and place not in known and not writer.is_constant(place):
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
                place = self.writer.place(self.values[parameter])
                operand = accumulators.get(gradient)
                state = sum(Value(var.aval).num_bytes for var in layer.states.get(parameter, ()))
                made = self._trained(place, self.values[gradient], operand, state)
                trained.setdefault(place, made)
            if layer.update is not None:
                sources = update_sources(layer)
                records += [self._place_or(var) for var in sources]
        return tuple(trained.values()), tuple(records)

    def _place_or(self, var: core.Var | None) -> int:
        return -1 if var is None or var not in self.values else self.writer.place(self.values[var])

    def _trained(self, parameter: int, gradient: Value, operand: core.Var | None, state: float) -> Trained:
        writer, place = self.writer, self.writer.place(gradient)
        if operand is None:
            accumulator = writer.add("parameter", (), gradient)
            total = writer.add("elementwise", (accumulator, place), gradient, "add")
        else:
            accumulator, total = writer.place(self.values[operand]), place
        sums = _sums(writer.operators, place, accumulator)
        for index in sums:
            writer.operators[index] = dataclasses.replace(writer.operators[index], gradient=True)
        writer.operators.append(writer.operators[total].as_output(total, accumulator))
        if writer.operators[parameter].shape == gradient.shape:
            updated = writer.add("elementwise", (parameter, total), gradient, "update")
            writer.operators.append(writer.operators[updated].as_output(updated, parameter))
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
                        place = self.writer.place(value)
                        found.append(Lifetime(place, value.num_bytes, start + n, start + last.get(value, n)))
            start += len(one.steps)
        return tuple(found)


def _closed(flat: Flattener) -> tuple[list[Step], list[int], list[int]]:
    """A pass's operations, each kernel as one; by the operations that kernels stand for, the numbers of the first of
    each, and of the one whose operator says how it is cut: that of its first product, of queries and keys.
    """
    steps: list[Step] = []
    firsts: list[int] = []
    products: list[int] = []
    end = 0
    for one in flat.opened:
        whole = range(end, one.first)
        product = next(n for n in range(one.first, one.last) if flat.steps[n].primitive == "dot_general")
        steps += [*flat.steps[end : one.first], one.step]
        firsts += [*whole, one.first]
        products += [*whole, product]
        end = one.last
    rest = range(end, len(flat.steps))
    return [*steps, *flat.steps[end:]], [*firsts, *rest], [*products, *rest]


def _ordered(layer: LayerJaxprs) -> list[core.Var]:
    """The layer's parameters in the order in which the passes take them."""
    taken = [*layer.forward.invars, *(layer.backward.invars if layer.backward is not None else ())]
    return [var for var in dict.fromkeys(taken) if var in layer.parameters]


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
