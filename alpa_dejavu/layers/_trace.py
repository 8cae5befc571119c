"""A model function's train step as jaxprs: the loss that it differentiates, and what it does with the gradients."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, final

import jax

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu._util.jax_api import asks_to_be_inlined, core, untried_version
from alpa_dejavu.layers._arguments import Arguments
from alpa_dejavu.layers._capture import capturing, gradient_p
from alpa_dejavu.layers._cluster import EquationClusters
from alpa_dejavu.layers._jaxprs import (
    body,
    derived_from,
    inlined,
    is_in,
    jaxpr_of,
    named,
    on_names,
    primitives_in,
    renamed,
    variables,
)
from alpa_dejavu.layers._resolve import resolve
from alpa_dejavu.layers._scans import Unrolled, unrolled
from alpa_dejavu.layers.marks import without_marks
from alpa_dejavu.layers.torch_modules import is_pair, module_step


@final
@dataclasses.dataclass(frozen=True, eq=False)
class TracedStep:
    """A train step traced to jaxprs at the size of a micro-batch: its loss, and the update after its gradients.

    Attributes:
        name: the name of the model function.
        loss: the jaxpr of the function that is differentiated; its first result is the loss. In inference, the whole
            step.
        gradients: for each operand of the loss that it is differentiated by, the variable of its gradient in `update`;
            empty in inference.
        data: the operands of the loss that are part of the batch, or computed from it.
        update: the jaxpr of all else that the step does, on operands of the loss, its results, gradients and the
            optimizer's state; None in inference.
        batch: the number of samples in a batch.
        num_micro_batches: how many micro-batches a batch is cut into.
        marks: where marks in the model function end its layers, the number of the loss's equations before each end;
            empty: layers are cut by a rule.
        notes: sentences on what a reader of the step's plan may not expect.
        constants: the numbers of operands of the loss that the step closes over.
    """

    name: str
    loss: core.Jaxpr
    gradients: Mapping[core.Var, core.Var]
    data: frozenset[core.Var]
    update: core.Jaxpr | None
    batch: int
    num_micro_batches: int
    marks: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    constants: Mapping[core.Var, Any] = dataclasses.field(default_factory=dict)

    @property
    def training(self) -> bool:
        """Returns whether the step trains, that is, takes a gradient; if not, it is inference."""
        return self.update is not None

    @property
    def micro_batch(self) -> int:
        """Returns the number of samples in a micro-batch."""
        return self.batch // self.num_micro_batches

    @cached_property
    def clusters(self) -> EquationClusters:
        """Returns the clusterer that cuts the equations of the step's loss into any number of layers, as Alpa does."""
        return EquationClusters(self.loss.eqns)

    @cached_property
    def workshops(self) -> dict[Any, Any]:
        """Returns the cache of the auto-sharding engine's cost tables, which all cuts of the step into layers share."""
        return {}

    def row(self, start: int, end: int) -> core.Jaxpr:
        """Returns the equations start..end-1 of the loss as a jaxpr, whose results are what later ones, or the step,
        take; all cuts of the step into layers share it.
        """
        if (start, end) not in self._rows:
            equations, last = self.loss.eqns[start:end], self._last_uses
            wanted = [var for equation in equations for var in equation.outvars if last.get(var, -1) >= end]
            self._rows[start, end] = jaxpr_of(equations, wanted)
        return self._rows[start, end]

    @cached_property
    def _rows(self) -> dict[tuple[int, int], core.Jaxpr]:
        return {}

    @cached_property
    def _last_uses(self) -> dict[core.Var, int]:
        """The number of the last equation of the loss that takes each variable; that of equations for a result."""
        last = {var: n for n, equation in enumerate(self.loss.eqns) for var in variables(equation.invars)}
        return last | dict.fromkeys(variables(self.loss.outvars), len(self.loss.eqns))

    @property
    def num_parameters(self) -> int:
        """Returns the number of the model's parameters, trained and frozen: all elements of arrays but the batch's."""
        return sum(var.aval.size for var in self.loss.invars if var not in self.data and var.aval.ndim)


def trace(function: str | Callable[..., Any], *, batch: int | None = None, num_micro_batches: int = 1) -> TracedStep:
    """Traces a model function's train step into jaxprs, at the size of a micro-batch; nothing is computed.

    The function, or its name (`module:function`, or one of `alpa_dejavu.layers.models`), takes a batch size and returns
    `(train_step, (state, batch, ...))`, arrays or abstract ones (`jax.ShapeDtypeStruct`). Without `batch` it is called
    without one, and the batch size is taken from the arrays that it returns. These are cut into micro-batches along
    their first dimension.

    Raises:
        ValueError: the name isn't known, the function returns something else, the batch can't be cut, or the step takes
            more than one gradient, or takes it in a loop. What the function itself raises is passed on as it is.
    """
    model_function = resolve(function)
    name = function if isinstance(function, str) else getattr(function, "__qualname__", repr(function))
    returned = model_function() if batch is None else _called(model_function, name, batch)
    if is_pair(returned):
        name = type(returned[0]).__name__ if is_pair(function) else name
        module, inputs = returned
        returned = module_step(module, inputs, num_micro_batches)
    arguments = Arguments.of(name, returned, batch, num_micro_batches)
    with collector_paused(), capturing():
        closed = jax.make_jaxpr(arguments.calling(_plain(arguments.step)))(*arguments.leaves)
    outer, arrays = closed.jaxpr, dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    names: dict[core.Var, core.Atom] = {}
    equations = list(inlined(outer.eqns, names, lambda equation: len(outer.eqns) == 1 or _has_gradient(equation)))
    results = [named(names, atom) for atom in outer.outvars]
    data = derived_from(equations, (v for v, is_data in zip(outer.invars, arguments.is_data, strict=True) if is_data))
    with_gradient = [equation for equation in equations if _has_gradient(equation)]
    if not with_gradient:
        loss = jaxpr_of(equations, results)
        step = _without_loops(name, loss, {}, data.intersection(loss.invars), None, arguments, num_micro_batches)
        return dataclasses.replace(step, constants=arrays)
    gradient, *others = with_gradient
    if others or gradient.primitive is not gradient_p:
        where = "more than one gradient" if others else f"its gradient inside of a {gradient.primitive.name}"
        raise ValueError(
            f"the train step of {name} takes {where}; it can be planned if it takes one gradient, of the loss of the "
            "whole (micro-)batch, outside of loops: gradients are added up over micro-batches for it"
        )
    loss, gradients, update = _split(equations, gradient, results)
    pairs = list(zip(loss.invars, gradient.invars, strict=True))
    own_data = frozenset(var for var, atom in pairs if is_in(atom, data))
    step = _without_loops(name, loss, gradients, own_data, update, arguments, num_micro_batches)
    return dataclasses.replace(step, constants={var: arrays[atom] for var, atom in pairs if is_in(atom, arrays)})


def _has_gradient(equation: core.JaxprEqn) -> bool:
    return gradient_p.name in primitives_in(equation)


def _without_loops(
    name: str, loss: core.Jaxpr, gradients: Mapping[core.Var, core.Var], data: frozenset[core.Var],
    update: core.Jaxpr | None, arguments: Arguments, num_micro_batches: int,
) -> TracedStep:  # fmt: skip
    """The traced step, its scans over layers unrolled."""
    with collector_paused():
        flat = unrolled(loss, gradients, update, data)
    bare, marks = without_marks(_inline(flat.loss))
    notes = _notes(name, flat, arguments)
    return TracedStep(name, bare, flat.gradients, data, flat.update, arguments.batch, num_micro_batches, marks, notes)


def _notes(name: str, flat: Unrolled, arguments: Arguments) -> tuple[str, ...]:
    """Sentences on what a reader of a step's plan may not expect."""
    notes = [*filter(None, [untried_version()]), *getattr(arguments.step, "notes", ())]
    if flat.update is None:
        notes.append(
            f"the step of {name} takes no gradient, so this is a plan for inference; if it is to train, take the "
            "gradient in the step, by jax.grad or jax.value_and_grad of the loss"
        )
    if flat.turns:
        notes.append(
            f"{name} has {_counted(flat.turns)} over weights of each turn, planned as so many blocks; for Alpa to run "
            "this plan, write the blocks as a Python loop in the train step, each with parameters of its own"
        )
    if flat.left:
        notes.append(
            f"{name} has {_counted(flat.left)} that share{'s' if len(flat.left) == 1 else ''} weights, as over time "
            "steps: a scan like that isn't cut, and is in one layer as a whole"
        )
    if arguments.fixed:
        shapes = ", ".join(str(shape) for shape in arguments.fixed[:3])
        notes.append(
            f"arrays of shape {shapes} in the batch of {name} don't have the batch size first, and don't grow with it; "
            "make their first dimension the batch size that the function is called with, if they are samples"
        )
    return tuple(notes)


def _counted(turns: Sequence[int]) -> str:
    text = f"{', '.join(map(str, turns))} turns"
    return f"a scan of {text}" if len(turns) == 1 else f"scans of {text}"


def _called(function: Callable[..., Any], name: str, batch: int) -> Any:
    """The step and arguments that a model function returns for a batch size, if it takes one."""
    try:
        inspect.signature(function).bind(batch)
    except TypeError as error:
        raise ValueError(
            f"{name} is a function of {inspect.signature(function)}, but must take one argument, the batch size; it is "
            "called with the samples of a micro-batch: write `def model(batch_size):`, and make the first dimension of "
            "the batch's arrays batch_size"
        ) from error
    except ValueError:  # a function without a signature
        pass
    return function(batch)


def _plain(step: Callable[..., Any]) -> Callable[..., Any]:
    """The function that Alpa's `parallelize` has wrapped, or the step itself."""
    inner = getattr(step, "fun", None)
    return inner if type(step).__module__.startswith("alpa.") and callable(inner) else step


def _split(
    equations: Sequence[core.JaxprEqn], gradient: core.JaxprEqn, results: Sequence[core.Atom]
) -> tuple[core.Jaxpr, dict[core.Var, core.Var], core.Jaxpr]:
    """The loss, the variables of its gradients, and what is neither the loss nor what its operands are made by."""
    loss, num_captured = gradient.params["loss"], gradient.params["num_captured"]
    needed = set(variables(gradient.invars))
    rest = []
    for equation in reversed(equations):
        if not needed.isdisjoint(equation.outvars):
            needed.update(variables(equation.invars))
        elif equation is not gradient:
            rest.append(equation)
    names: dict[core.Var, core.Atom] = {
        atom: var for atom, var in zip(gradient.invars, loss.invars, strict=True) if isinstance(atom, core.Var)
    }
    values, slopes = gradient.outvars[: len(loss.outvars)], gradient.outvars[len(loss.outvars) :]
    names.update(zip(values, loss.outvars, strict=True))
    update = [on_names(equation, names) for equation in reversed(rest)]
    gradients = dict(zip(loss.invars[num_captured:], slopes, strict=True))
    return _opened(loss), gradients, jaxpr_of(update, [named(names, atom) for atom in results])


def _opened(loss: core.Jaxpr) -> core.Jaxpr:
    """A loss that is nothing but one jitted function's call, as that function."""
    function = body(loss.eqns[0]) if len(loss.eqns) == 1 else None
    if function is None:
        return loss
    equations, results = renamed(function, loss.eqns[0].invars)
    names = dict(zip(loss.eqns[0].outvars, results, strict=True))
    return _opened(loss.replace(eqns=equations, outvars=[named(names, atom) for atom in loss.outvars]))


def _inline(loss: core.Jaxpr) -> core.Jaxpr:
    """A loss with the functions inlined that ask jax for it, which a new one does only when it compiles; and with the
    checkpoints that keep everything, as without them.
    """
    names: dict[core.Var, core.Atom] = {}
    keeps_all = jax.checkpoint_policies.everything_saveable
    equations = list(
        inlined(loss.eqns, names, lambda eqn: asks_to_be_inlined(eqn.params) or eqn.params.get("policy") is keeps_all)
    )
    return loss.replace(eqns=equations, outvars=[named(names, atom) for atom in loss.outvars])
