"""A marked step's equations, sorted into the layers of its pipeline and the optimizer after them.

Markers say where a layer begins and ends, but not all that belongs to it. `jax.grad` mixes the backward passes of
layers that don't wait for each other, adds up cotangents of several layers between them, and lets backward passes read
what lies inside of forward ones; and what a step computes before it takes the gradient lies before all layers. So
markers are taken out, each equation is given to a layer, and markers are written anew around each layer: all that it
reads and another makes comes in by its first marker, all that it makes and another reads goes out by its last.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from jax._src.ad_util import add_jaxvals_p
from jax._src.core import new_jaxpr_eqn, no_effects
from jax._src.lax.lax import copy_p
from jax.core import Atom, ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Literal, Var

__all__ = ["SortedStep", "sorted_step", "variables_of", "with_names"]

_BACKWARD = "_backward"
_NONE = -1
NewVar = Callable[[Any], Var]


@dataclasses.dataclass(frozen=True)
class SortedStep:
    """A step in two parts.

    Attributes:
        is_split: whether a gradient is marked; if not, all of the step is in layers.
        layers: the forward layers and, in a train step, their backward passes from the last to the first; each begins
            and ends with a marker. Its results are what the optimizer reads, or the step's where there is none.
        update: the optimizer.
        gradients: the optimizer's names of the layers' results.
        results: what the step returns: variables of the update, or of `gradients`.
    """

    is_split: bool
    layers: ClosedJaxpr
    update: ClosedJaxpr
    gradients: tuple[Var, ...]
    results: tuple[Var, ...]


def sorted_step(closed: ClosedJaxpr, new_var: NewVar, training: bool, batch: Collection[Var] = ()) -> SortedStep:
    """Sorts a step's equations into layers and optimizer.

    Args:
        closed: the step with Alpa's markers around its forward layers, their derivatives, and behind the gradient.
        new_var: makes a variable like an abstract value.
        training: whether the step takes a gradient, so that each layer has a backward pass.
        batch: the arguments that are cut into micro-batches.

    Raises:
        ValueError: a train step takes no gradient by Alpa's functions, or more than one.
    """
    jaxpr, equations = closed.jaxpr, closed.jaxpr.eqns
    at = _gradient(equations, training)
    is_split = at < len(equations)
    read = _Marked.read(equations[:at])
    results: list[Atom] = list(jaxpr.outvars)
    if is_split:
        pairs = zip(equations[at].outvars, equations[at].invars, strict=True)
        marks = {var: read.meaning(atom) for var, atom in pairs if not isinstance(var, DropVar)}
    else:
        marks = {new_var(atom.aval): read.meaning(atom) for atom in results}
        results = list(marks)
    given = {*jaxpr.invars, *jaxpr.constvars}
    seen: set[Atom] = set()
    for var, atom in marks.items():
        # A layer copies what it doesn't make, if it isn't the same for all micro-batches or there is nothing else to.
        is_made = isinstance(atom, Var) and atom not in given and atom not in seen
        if (not is_split and not is_made) or _is_in(atom, batch):
            marks[var] = new_var(atom.aval)
            read.rows.append((_equation(copy_p, [atom], [marks[var]]), _NONE))
        elif isinstance(atom, Var):
            seen.add(atom)
    update = equations[at + 1 :]
    sorting = _Sorting(read.rows, batch)
    sorting.sort(variables_of(marks.values()), variables_of(_read_by(update, results)), everything=not is_split)
    gradients: dict[Var, Var] = {}
    for var, atom in marks.items():
        if _is_in(atom, sorting.handed_over):
            gradients.setdefault(atom, var)
    gradients |= {var: new_var(var.aval) for var in sorting.handed_over if var not in gradients}
    names = read.names if not training else [*read.names, *(name + _BACKWARD for name in reversed(read.names))]
    layers, outer = _with_markers(sorting.layers, names, gradients, {*jaxpr.constvars}, new_var)
    renamed = {var: _renamed_atom(atom, gradients) for var, atom in marks.items()} | gradients
    updated = [with_names(equation, renamed) for equation in [*sorting.put_off, *update]]
    for n, atom in enumerate(results):
        result = _renamed_atom(atom, renamed)
        if isinstance(result, Literal) or result in given:
            # Each result must be made somewhere: it is copied where the optimizer runs.
            updated.append(_equation(copy_p, [result], [result := new_var(result.aval)]))
        results[n] = result
    made = _made_by(updated)
    return SortedStep(
        is_split=is_split,
        layers=_closed(closed, layers, [outer[var] for var in gradients]),
        update=_closed(closed, updated, [var for var in dict.fromkeys(results) if var in made]),
        gradients=tuple(gradients.values()),
        results=tuple(results),
    )


def _gradient(equations: Sequence[JaxprEqn], training: bool) -> int:
    """The place of the marker behind the gradient, or the end where there is none."""
    found = [n for n, equation in enumerate(equations) if equation.params.get("mark_type") == "grad"]
    has_backward = any(str(equation.params.get("name", "")).endswith(_BACKWARD) for equation in equations)
    if not training or len(found) == 1 or (has_backward and not found):
        return found[0] if training and found else len(equations)
    takes = "more than one gradient" if found else "no gradient by alpa.grad or alpa.value_and_grad"
    remedy = "take it of the sum of the losses" if found else "take it by these, or give pipeline_schedule='inference'"
    raise ValueError(
        f"the train step takes {takes}, but must take one, of the loss of the whole (micro-)batch and outside of loops "
        f"and conditionals: gradients are added up over micro-batches for it; {remedy}"
    )


@dataclasses.dataclass(frozen=True)
class _Marked:
    """A marked jaxpr without its markers.

    Attributes:
        rows: the other equations, each with the number of the layer that it is in: forward layers count from 0,
            backward ones from the last forward one on; `_NONE` for those in no layer.
        names: of the forward layers.
        stands_for: what each result of a marker stands for.
    """

    rows: list[tuple[JaxprEqn, int]]
    names: list[str]
    stands_for: dict[Var, Atom]

    @classmethod
    def read(cls, equations: Sequence[JaxprEqn]) -> _Marked:
        """Takes out the markers.

        Forward layers are whole between their markers. The backward passes of layers may be mixed: each is known by
        the cotangents that come in by its marker, and by what is computed from them.
        """
        starts = [equation.params["name"] for equation in equations if equation.params.get("mark_type") == "start"]
        names = [name for name in starts if not name.endswith(_BACKWARD)]
        numbers = {name: n for n, name in enumerate([*names, *(name + _BACKWARD for name in reversed(names))])}
        read = cls([], names, {})
        inside: dict[Var, int] = {}
        forward = _NONE
        for equation in equations:
            if equation.params.get("mark_type") == "boundary":
                continue  # where another layer option would have cut
            if "mark_type" in equation.params:
                number, begins = numbers[equation.params["name"]], equation.params["mark_type"] == "start"
                for atom, var in zip(equation.invars, equation.outvars, strict=True):
                    read.stands_for[var] = read.meaning(atom)
                if number < len(names):
                    forward = number if begins else _NONE
                elif begins:
                    inside |= dict.fromkeys(equation.outvars, number)
                continue
            layer = forward
            if layer == _NONE:
                layer = max((inside.get(var, _NONE) for var in variables_of(equation.invars)), default=_NONE)
                if layer != _NONE:
                    inside |= dict.fromkeys(equation.outvars, layer)
            read.rows.append((with_names(equation, read.stands_for), layer))
        return read

    def meaning(self, atom: Atom) -> Atom:
        """What an operand stands for, markers aside."""
        return _renamed_atom(atom, self.stands_for)


class _Sorting:
    """Sorts the equations before the optimizer.

    An equation outside of layers goes into the layer that reads it first; a sum of cotangents, into the layer of its
    last summand. What only the optimizer reads is put off until it runs, but after the last micro-batch there are only
    sums left to do of what layers have made.

    Attributes:
        layers: the equations of each layer.
        put_off: those that are done with the optimizer.
        handed_over: what the layers make for these and the optimizer.
    """

    def __init__(self, rows: Sequence[tuple[JaxprEqn, int]], batch: Collection[Var]) -> None:
        self.layers: dict[int, list[JaxprEqn]] = collections.defaultdict(list)
        self.put_off: list[JaxprEqn] = []
        self.handed_over: dict[Var, None] = {}
        self._rows = rows
        # The last layer that each variable is computed from, and whether it is from the batch.
        self._last: dict[Var, int] = {}
        self._of_batch = set(batch)
        for equation, layer in rows:
            operands = variables_of(equation.invars)
            last = max([layer, *(self._last.get(var, _NONE) for var in operands)])
            self._last |= dict.fromkeys(equation.outvars, last)
            if not self._of_batch.isdisjoint(operands):
                self._of_batch.update(equation.outvars)

    def sort(self, marked: Iterable[Var], read: Iterable[Var], everything: bool) -> None:
        """Sorts all.

        Args:
            marked: what is marked as the gradient, or the results of a step without one.
            read: what else the optimizer reads.
            everything: whether all of what is marked is made by layers.
        """
        wanted = dict.fromkeys(var for var in marked if everything or self._is_in_layers(var) or var in self._of_batch)
        later = {*marked, *read} - wanted.keys()
        wanted |= dict.fromkeys(var for var in read if self._is_in_layers(var))
        first: dict[Var, int] = {}
        rows = []
        for equation, layer in reversed(self._rows):
            made = [var for var in equation.outvars if not isinstance(var, DropVar)]
            last = max((self._last[var] for var in made), default=_NONE)
            is_sum = equation.primitive is add_jaxvals_p and last != _NONE
            if layer == _NONE:
                readers = [first[var] for var in made if var in first]
                if readers:
                    layer = last if is_sum else min(readers)
                elif not is_sum and any(var in wanted for var in made):
                    layer = max(last, 0)
            if layer != _NONE:
                rows.append((equation, layer))
                for var in variables_of(equation.invars):
                    first[var] = min(layer, first.get(var, layer))
            if any(var in later for var in made) or (layer == _NONE and any(var in wanted for var in made)):
                self.put_off.append(equation)
                for var in made:
                    wanted.pop(var, None)
                for var in variables_of(equation.invars):
                    (wanted.setdefault(var) if self._is_in_layers(var) else later.add(var))
        self.put_off.reverse()
        made_in: dict[Var, int] = {}
        for equation, layer in reversed(rows):
            layer = max([layer, *(made_in.get(var, _NONE) for var in variables_of(equation.invars))])
            self.layers[layer].append(equation)
            made_in |= dict.fromkeys(equation.outvars, layer)
        self.handed_over = {var: None for var in wanted if var in made_in}

    def _is_in_layers(self, var: Var) -> bool:
        return self._last.get(var, _NONE) != _NONE


def _with_markers(
    layers: Mapping[int, Sequence[JaxprEqn]],
    names: Sequence[str],
    wanted: Collection[Var],
    constants: Collection[Var],
    new_var: NewVar,
) -> tuple[list[JaxprEqn], dict[Var, Var]]:
    """The layers' equations with markers around them, and the names that their results have outside of them."""
    from alpa.pipeline_parallel.primitive_def import mark_pipeline_jaxpreqn

    outer: dict[Var, Var] = {}
    written: list[JaxprEqn] = []
    own = [_made_by(layers.get(n, ())) for n in range(len(names))]
    reads = [
        [v for v in variables_of(_read_by(layers.get(n, ()))) if v not in own[n] and v not in constants]
        for n in range(len(names))
    ]
    wanted_outside = {*wanted, *(var for read in reads for var in read)}
    for n, name in enumerate(names):
        inner = {var: new_var(var.aval) for var in reads[n]}
        results = {var: new_var(var.aval) for var in own[n] if var in wanted_outside}
        sources = [outer.get(var, var) for var in inner]
        written.append(mark_pipeline_jaxpreqn(sources, list(inner.values()), name, "start"))
        written += [with_names(equation, inner) for equation in layers.get(n, ())]
        written.append(mark_pipeline_jaxpreqn(list(results), list(results.values()), name, "end"))
        outer |= results
    return written, outer


def _closed(whole: ClosedJaxpr, equations: Sequence[JaxprEqn], results: Sequence[Var]) -> ClosedJaxpr:
    """Equations of a jaxpr as one of their own."""
    read = {*_read_by(equations)}
    constants = {v: c for v, c in zip(whole.jaxpr.constvars, whole.consts, strict=True) if v in read}
    made = _made_by(equations)
    operands = [var for var in variables_of(_read_by(equations)) if var not in made and var not in constants]
    return ClosedJaxpr(Jaxpr([*constants], operands, list(results), list(equations)), [*constants.values()])


def _equation(primitive: Any, operands: Sequence[Atom], results: Sequence[Var]) -> JaxprEqn:
    return new_jaxpr_eqn(operands, results, primitive, {}, no_effects)


def with_names(equation: JaxprEqn, names: Mapping[Var, Atom]) -> JaxprEqn:
    """An equation whose operands are called otherwise."""
    return equation.replace(invars=[_renamed_atom(atom, names) for atom in equation.invars])


def _renamed_atom(atom: Atom, names: Mapping[Var, Atom]) -> Atom:
    return names.get(atom, atom) if isinstance(atom, Var) else atom


def _read_by(equations: Iterable[JaxprEqn], results: Sequence[Atom] = ()) -> list[Var]:
    return list(variables_of([*(atom for equation in equations for atom in equation.invars), *results]))


def _made_by(equations: Iterable[JaxprEqn]) -> dict[Var, None]:
    return dict.fromkeys(v for equation in equations for v in equation.outvars if not isinstance(v, DropVar))


def variables_of(atoms: Iterable[Atom]) -> dict[Var, None]:
    """The variables among operands, each once."""
    return dict.fromkeys(atom for atom in atoms if isinstance(atom, Var))


def _is_in(atom: Atom, variables: Collection[Any]) -> bool:
    return isinstance(atom, Var) and atom in variables
