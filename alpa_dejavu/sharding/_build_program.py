"""Building the program of some layers: their passes read one after the other, then what an update ties together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import final

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers.features.flatten import Flattener, Step, Value
from alpa_dejavu.layers.features.fusion import Fusion
from alpa_dejavu.layers.features.operator_kinds import ALIASES, kind_of
from alpa_dejavu.sharding._from_jaxpr import read_steps
from alpa_dejavu.sharding._layer_jaxprs import LayerJaxprs, results, update_sources
from alpa_dejavu.sharding._layer_program import LayerProgram, Lifetime, PassSteps, TrainedParameter
from alpa_dejavu.sharding._operator import ProgramOperator
from alpa_dejavu.sharding._writer import OperatorWriter


def layer_program(layers: Sequence[LayerJaxprs], batch_dims: Mapping[core.Var, int] | None = None) -> LayerProgram:
    """Builds the program of operators that the engine solves for one or several consecutive layers; `batch_dims` has
    the batch dimension of variables that the layers take, where it is known beside that of the batch's arrays.
    """
    dims = dict(batch_dims or {})
    for layer in layers:
        dims.update(layer.batch_dims)
    return _ProgramBuilder(layers, dims).build()


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Pass:
    """One jaxpr, flattened: its values and steps."""

    jaxpr: core.Jaxpr
    inputs: list[Value]
    outputs: list[Value]
    steps: list[Step]


@final
class _ProgramBuilder:
    def __init__(self, layers: Sequence[LayerJaxprs], batch_dims: Mapping[core.Var, int]) -> None:
        self.layers = layers
        self.batch_dims = batch_dims
        self.writer = OperatorWriter()
        self.values: dict[core.Var, Value] = {}

    def build(self) -> LayerProgram:
        """Builds the program: forward passes in order, backward passes in the opposite order, then updates."""
        writer = self.writer
        ahead, forward_records, forward_steps = self._passes([layer.forward for layer in self.layers])
        num_forward = len(writer.operators)
        backward = [layer.backward for layer in reversed(self.layers) if layer.backward is not None]
        back, backward_records, backward_steps = self._passes(backward)
        num_backward = len(writer.operators) - num_forward
        received, sent = self._crossing(ahead, back)
        kept, inputs = self._waiting()
        trained, update_records = self._update()
        computed = {var for part in ahead for var in results(part.jaxpr)}
        known_batch = {
            writer.place(self.values[var]): self.batch_dims[var]
            for part in ahead
            for var in part.jaxpr.invars
            if var in self.batch_dims and var not in computed
        }
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
            results=tuple(writer.places.get(value, -1) for part in ahead for value in part.outputs),
            known_batch=tuple(known_batch.items()),
            forward_steps=forward_steps,
            backward_steps=backward_steps,
        )

    def _passes(self, jaxprs: Sequence[core.Jaxpr]) -> tuple[list[_Pass], tuple[int, ...], PassSteps]:
        """Reads the jaxprs; also the operator of each operator record, and all operations in order."""
        passes, records = [], []
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
            passes.append(_Pass(jaxpr, inputs, outputs, steps))
            records += [
                self.writer.of_step[start + n] for n, step in zip(products, steps, strict=True)
                if step.primitive not in ALIASES and step.outputs
            ]  # fmt: skip
        everything = tuple(step for part in passes for step in part.steps)
        return passes, tuple(records), PassSteps(everything, (*starts, len(self.writer.operators)), self.writer.places)

    def _places(self, variables: Iterable[core.Var]) -> tuple[int, ...]:
        """Returns the operators behind variables, each once, in order."""
        return tuple(dict.fromkeys(self.writer.place(self.values[var]) for var in variables if var in self.values))

    def _crossing(self, ahead: Sequence[_Pass], back: Sequence[_Pass]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the operators of what crosses the boundary before the layers, and of what crosses the boundary after.

        The forward passes take from the layers before and give to those after; the backward passes do the opposite.
        """
        shared = frozenset().union(*(layer.shared for layer in self.layers))
        sides: tuple[list[core.Var], list[core.Var]] = ([], [])
        met: set[core.Var] = set()
        for passes, enters, leaves in ((ahead, 0, 1), (back, 1, 0)):
            read = {var for part in passes for var in part.jaxpr.invars}
            computed = {var for part in passes for var in results(part.jaxpr)}
            sides[enters].extend((read & shared) - computed - met)
            sides[leaves].extend((computed & shared) - read)
            met |= read | computed
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
            computed = results(layer.forward)
            got = [var for var in layer.forward.invars if var not in layer.parameters]
            kept += [var for var in layer.backward.invars if var in computed]
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
        left_out = {value.operator for value in but}
        lifetimes = []
        for value in roots:
            place = writer.place(value)
            if value not in resident and place not in left_out and not writer.is_constant(place):
                lifetimes.append(Lifetime(place, value.num_bytes))
        return tuple(lifetimes)

    def _update(self) -> tuple[tuple[TrainedParameter, ...], tuple[int, ...]]:
        trained: dict[int, TrainedParameter] = {}
        records: list[int] = []
        for layer in self.layers:
            accumulators = {result: operand for operand, result in layer.accumulators.items()}
            for parameter, gradient in layer.gradients.items():
                if parameter not in self.values or gradient not in self.values:
                    continue
                place = self.writer.place(self.values[parameter])
                operand = accumulators.get(gradient)
                state = sum(Value(var.aval).num_bytes for var in layer.states.get(parameter, ()))
                trained.setdefault(place, self._trained(place, self.values[gradient], operand, state))
            for var in update_sources(layer) if layer.update is not None else ():
                records.append(self.writer.place(self.values[var]) if var in self.values else -1)
        return tuple(trained.values()), tuple(records)

    def _trained(self, parameter: int, gradient: Value, operand: core.Var | None, state: float) -> TrainedParameter:
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
        return TrainedParameter(parameter, accumulator, sums, state)

    def _temporaries(self, passes: Sequence[_Pass]) -> tuple[Lifetime, ...]:
        lifetimes: list[Lifetime] = []
        start = 0
        for part in passes:
            kinds = [kind_of(step) for step in part.steps]
            fusion = Fusion(part.steps, kinds, part.inputs, part.outputs)
            lasting = {fusion.root(value) for value in (*part.inputs, *part.outputs)}
            last = {fusion.root(value): n for n, step in enumerate(part.steps) for value in step.inputs}
            for n, step in enumerate(part.steps):
                for value in step.outputs if step.primitive not in ALIASES else ():
                    if value in fusion.in_memory and value not in lasting:
                        place = self.writer.place(value)
                        lifetimes.append(Lifetime(place, value.num_bytes, start + n, start + last.get(value, n)))
            start += len(part.steps)
        return tuple(lifetimes)


def _closed(flat: Flattener) -> tuple[list[Step], list[int], list[int]]:
    """Returns a pass's operations, each kernel as one; by the operations that kernels stand for, the numbers of the
    first of each, and of the one whose operator says how it is cut: that of its first product, of queries and keys.
    """
    steps: list[Step] = []
    firsts: list[int] = []
    products: list[int] = []
    end = 0
    for kernel in flat.opened:
        whole = range(end, kernel.first)
        product = next(n for n in range(kernel.first, kernel.last) if flat.steps[n].primitive == "dot_general")
        steps += [*flat.steps[end : kernel.first], kernel.step]
        firsts += [*whole, kernel.first]
        products += [*whole, product]
        end = kernel.last
    rest = range(end, len(flat.steps))
    return [*steps, *flat.steps[end:]], [*firsts, *rest], [*products, *rest]


def _ordered(layer: LayerJaxprs) -> list[core.Var]:
    """Returns the layer's parameters in the order in which the passes take them."""
    operands = [*layer.forward.invars, *(layer.backward.invars if layer.backward is not None else ())]
    return [var for var in dict.fromkeys(operands) if var in layer.parameters]


def _sums(operators: Sequence[ProgramOperator], place: int, accumulator: int) -> tuple[int, ...]:
    """Returns the products and reductions that a gradient is added up from, element by element or moved about."""
    sums, stack = [], [place]
    while stack:
        index = stack.pop()
        operator = operators[index]
        if operator.kind in ("dot", "convolution", "reduce"):
            sums.append(index)
        elif operator.kind in ("transpose", "reshape") or operator.name in ("add", "convert", "multiply", "neg"):
            stack += [i for i in operator.operands if i != accumulator and operators[i].rank]
        elif operator.kind == "same_size" and len(operator.operands) == 1:
            stack += operator.operands
    return tuple(sorted(sums))
