"""A training step whose micro-batches together compute what the whole batch does.

Alpa traces a step with a micro-batch, adds up what the gradient's marker gets from each, and divides by their number.
That is right for a loss that is a plain mean, and for nothing else. Here the step is rewritten before it is cut into
layers, so that it is right for whatever is known of it: a sum is multiplied by the number of micro-batches; values of
each sample are put at their place; what the update needs of the batch, and what the loss divides by, is computed of the
whole batch and given to the step as one more argument.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core

from alpa_stock_jax._batch_relation import Pair, Relation, same
from alpa_stock_jax._batch_walk import BatchWalk, Differs
from alpa_stock_jax._folded_keys import folded_keys
from alpa_stock_jax._layers import variables_of, with_names
from alpa_stock_jax._micro_batch_results import Result, result
from alpa_stock_jax._recorded_step import RecordedStep

__all__ = ["MicroBatchStep", "read_step"]

@dataclasses.dataclass(frozen=True)
class MicroBatchStep:
    """A step that is given more arguments, and is right over micro-batches.

    Attributes:
        call: takes the step's flat arguments of a micro-batch, and the ones more, and gives its flat results.
        batch_invars: which of the step's own arguments are cut into micro-batches: those of the batch that the loss
            needs.
        extra_avals: the arguments that it takes more, with the whole batch.
        extra_batch: which of them are cut into micro-batches.
        prepare: takes the step's flat arguments of a whole batch, and gives those that it takes more.
    """

    call: Callable[..., list[Any]]
    batch_invars: tuple[bool, ...]
    extra_avals: tuple[core.ShapedArray, ...]
    extra_batch: tuple[bool, ...]
    prepare: Callable[..., list[Any]]


def read_step(
    micro: RecordedStep,
    whole: RecordedStep,
    batch_invars: Sequence[bool],
    micro_batches: int,
    differentiate: tuple[Callable[..., Any], Callable[..., Any]],
    accumulate: str | None = None,
) -> MicroBatchStep | None:
    """Rewrites a step; None where Alpa's own way is right as it is.

    Args:
        micro: the step, traced with a micro-batch.
        whole: the step, traced with the whole batch.
        batch_invars: which of its arguments are the batch.
        micro_batches: how many micro-batches there are.
        differentiate: `alpa.grad` and `alpa.value_and_grad`.
        accumulate: what is right where it can't be known: "mean", "sum"; None is "mean", with a warning.

    Raises:
        ValueError: a result of the loss isn't known, and is no floating-point number; or the loss is differentiated by
            what depends on the batch.
    """
    reader = _Reader(micro, whole, tuple(batch_invars), micro_batches, accumulate)
    return reader.step(differentiate)


class _Reader:
    def __init__(
        self, micro: RecordedStep, whole: RecordedStep, batch_invars: tuple[bool, ...], number: int,
        accumulate: str | None,
    ) -> None:  # fmt: skip
        self.micro, self.whole, self.batch_invars, self.number = micro, whole, batch_invars, number
        self.accumulate = accumulate
        places = [n for n, is_batch in enumerate(batch_invars) if is_batch]
        self.samples = micro.jaxpr.invars[places[0]].aval.shape[0]
        self.walk = BatchWalk(number, self.samples)
        self.results = self._results()

    def _follow(self) -> list[Relation]:
        """The relations of the loss's results, once all that is taken from the whole batch is known."""
        while True:
            known = len(self.walk.hoisted)
            relations = self._follow_once()
            if relations[0].kind == "unknown" and self.walk.mends:
                # What isn't known is at least what a micro-batch alone gives.
                self.walk = BatchWalk(self.number, self.samples, mends=False)
            elif len(self.walk.hoisted) == known:
                return relations
            else:
                self.walk = BatchWalk(self.number, self.samples, self.walk.mends, hoisted=self.walk.hoisted)

    def _follow_once(self) -> list[Relation]:
        micro, whole, walk = self.micro, self.whole, self.walk
        walk.constants(micro.closed, whole.closed)
        walk.bind(micro.jaxpr.invars, [
            Relation("rows", origin="batch") if is_batch else same() for is_batch in self.batch_invars
        ])  # fmt: skip
        walk.follow(micro.jaxpr.eqns[: micro.position], whole.jaxpr.eqns[: whole.position])
        operands = list(zip(micro.differentiated.invars, whole.differentiated.invars, strict=True))
        walk.names.update(zip(micro.loss.invars, operands, strict=True))
        walk.bind(micro.loss.invars, [walk.read(*pair) for pair in operands])
        for place in micro.leaves:
            relation = walk.relations[micro.loss.invars[place]]
            if not relation.plain:
                raise ValueError(
                    f"the loss is differentiated by an argument of shape {micro.loss.invars[place].aval.shape} that "
                    f"depends on the batch, but must be differentiated by what is the same for all {self.number} "
                    "micro-batches; train with one micro-batch"
                )
        walk.follow(micro.loss.eqns, whole.loss.eqns)
        return [walk.finish(*pair) for pair in zip(micro.loss.outvars, whole.loss.outvars, strict=True)]

    def _results(self) -> list[Result]:
        try:
            relations = self._follow()
        except Differs:
            raise ValueError(
                f"the step does other operations with {self.samples} samples than with {self.samples * self.number}, "
                f"so {self.number} micro-batches can't compute what the whole batch does; train with one micro-batch, "
                "or write the step without conditions on the batch's size and loops over its samples (jax.vmap is none)"
            ) from None
        told = set[str]()
        return [
            result(name, relation, Pair.of(micro, whole), micro.aval.dtype, self.number, self.accumulate, told)
            for name, relation, micro, whole in zip(
                self.micro.names, relations, self.micro.loss.outvars, self.whole.loss.outvars, strict=True
            )
        ]

    def step(self, differentiate: tuple[Callable[..., Any], Callable[..., Any]]) -> MicroBatchStep | None:
        """The rewritten step, or None where nothing is to be done."""
        loss, loss_inputs = self._loss()
        relations = [self.walk.relations[var] for var in loss_inputs]
        folded = folded_keys(loss, [relation.origin == "batch" or not relation.plain for relation in relations])
        update, update_inputs, given = self._update()
        whole_batch = [var for var in update_inputs if var in given]
        used = tuple(var in loss_inputs for var in self.micro.jaxpr.invars)
        used = tuple(is_batch and needed for is_batch, needed in zip(self.batch_invars, used, strict=True))
        # Alpa takes one array of the batch for another where the loss doesn't need all.
        changed = used != self.batch_invars or any(output.before or output.after for output in self.results)
        if not (changed or folded or whole_batch or self.walk.hoisted or self.walk.corrections):
            return None
        needs_number = folded is not None or any(output.needs_number for output in self.results)
        outside = self._outside(loss_inputs)
        needed = {*loss_inputs, *outside.needed}
        hoisted = [(micro, whole) for micro, whole in self.walk.hoisted.items() if micro in needed]
        sources = [whole for _, whole in hoisted] + whole_batch
        numbers = np.repeat(np.arange(self.number, dtype=np.uint32), self.samples)
        avals = [var.aval for var in sources] + [core.ShapedArray(numbers.shape, numbers.dtype)] * needs_number
        cut = [not Pair.of(*pair).alike for pair in hoisted] + [False] * len(whole_batch) + [True] * needs_number
        prepared = self._prepared(sources)

        def prepare(*arguments: Any) -> list[Any]:
            """The arguments that the step takes more."""
            return [*prepared(*arguments), *([numbers] if needs_number else [])]

        call = functools.partial(
            self._call, differentiate=differentiate[self.micro.with_value], loss=folded or loss,
            loss_inputs=loss_inputs, outside=outside, takes_number=folded is not None,
            update=update, update_inputs=update_inputs,
            hoisted=[micro for micro, _ in hoisted], whole_batch=whole_batch, needs_number=needs_number,
        )  # fmt: skip
        return MicroBatchStep(call, used, tuple(avals), tuple(cut), prepare)

    def _loss(self) -> tuple[core.ClosedJaxpr, list[Any]]:
        """The loss with all that it needs of the micro-batch, and its inputs: first what it is differentiated by."""
        step, walk = self.micro, self.walk
        leaves = {step.loss.invars[place] for place in step.leaves}
        names = {var: own for var, (own, _) in walk.names.items() if var not in leaves}
        inner = [[with_names(made, names) for made in self._corrected(eqn)] for eqn in step.loss.eqns]
        outer = [
            self._corrected(eqn) for eqn in step.jaxpr.eqns[: step.position]
            if any(not walk.relations.get(var, same()).plain for var in eqn.outvars)
        ]  # fmt: skip
        results = [names.get(var, var) if isinstance(var, core.Var) else var for var in step.loss.outvars]
        eqns, inputs = _needed([*itertools.chain(*outer, *inner)], results, set(walk.hoisted))
        ordered = [*(step.loss.invars[place] for place in step.leaves), *(var for var in inputs if var not in leaves)]
        return core.ClosedJaxpr(core.Jaxpr([], ordered, results, eqns), []), ordered

    def _corrected(self, eqn: Any) -> list[Any]:
        """An equation, behind the multiplications of its operands that make its terms scaled alike."""
        factors = {n: f for (key, n), f in self.walk.corrections.items() if key == id(eqn)}
        if not factors:
            return [eqn]
        made, invars = [], list(eqn.invars)
        for n, factor in factors.items():
            aval = invars[n].aval
            var = core.Var("", aval.strip_weak_type()) if hasattr(aval, "strip_weak_type") else core.Var("", aval)
            scaled = jax.make_jaxpr(lambda value, factor=factor: (value * factor).astype(value.dtype))(aval)
            made.append(core.new_jaxpr_eqn(
                [invars[n]], [var], core.closed_call_p, {"call_jaxpr": scaled}, core.no_effects
            ))  # fmt: skip
            invars[n] = var
        return [*made, eqn.replace(invars=invars)]

    def _update(self) -> tuple[core.ClosedJaxpr, list[Any], set[Any]]:
        """What the step does beside the loss with the whole batch, its inputs, and all that the batch gives alone."""
        step = self.whole
        given = self._given_by_the_batch()
        others = [
            eqn for n, eqn in enumerate(step.jaxpr.eqns)
            if n != step.position and not any(var in given for var in eqn.outvars)
        ]  # fmt: skip
        eqns, inputs = _needed(others, step.jaxpr.outvars)
        return core.ClosedJaxpr(core.Jaxpr([], inputs, step.jaxpr.outvars, eqns), []), inputs, given

    def _given_by_the_batch(self) -> set[Any]:
        """The variables of the whole step that the batch gives alone, the batch itself among them."""
        step = self.whole
        batch = {var for var, is_batch in zip(step.jaxpr.invars, self.batch_invars, strict=True) if is_batch}
        known = set(step.jaxpr.constvars)
        given = set(batch)
        for eqn in step.jaxpr.eqns:
            operands = variables_of(eqn.invars)
            if eqn is not step.differentiated and all(var in given or var in known for var in operands):
                (given if any(var in given for var in operands) else known).update(eqn.outvars)
        return given

    def _prepared(self, sources: Sequence[Any]) -> Callable[..., list[Any]]:
        """A function of the step's arguments that gives what the batch gives alone."""
        step = self.whole
        names = dict(zip(step.loss.invars, step.differentiated.invars, strict=True))
        results = [names.get(var, var) for var in sources]
        before, after = step.jaxpr.eqns[: step.position], step.jaxpr.eqns[step.position + 1 :]
        eqns, inputs = _needed([*before, *(with_names(eqn, names) for eqn in step.loss.eqns), *after], results)
        batch = [n for n, var in enumerate(step.jaxpr.invars) if var in inputs]
        given = [step.jaxpr.invars[n] for n in batch]
        jaxpr = core.Jaxpr(step.jaxpr.constvars, given, results, eqns)
        computed = jax.jit(core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, step.closed.consts)))
        return lambda *arguments: computed(*(np.asarray(arguments[n]) for n in batch)) if sources else []

    def _call(
        self, *arguments: Any, differentiate: Callable[..., Any], loss: core.ClosedJaxpr, loss_inputs: Sequence[Any],
        outside: _Outside, takes_number: bool, update: core.ClosedJaxpr, update_inputs: Sequence[Any],
        hoisted: Sequence[Any], whole_batch: Sequence[Any], needs_number: bool,
    ) -> list[Any]:  # fmt: skip
        step, own = self.micro, len(self.batch_invars)
        extra = arguments[own:]
        numbers = extra[-1] if needs_number else np.zeros(1, np.uint32)
        values: dict[Any, Any] = dict(zip(step.jaxpr.invars, arguments[:own], strict=True))
        values.update(zip(step.jaxpr.constvars, step.closed.consts, strict=True))
        values.update(zip(hoisted, extra, strict=False))
        made = core.eval_jaxpr(outside.jaxpr, [], *(values[var] for var in outside.jaxpr.invars))
        values.update(zip(outside.jaxpr.outvars, made, strict=True))
        leaves = [_value(step.differentiated.invars[place], values) for place in step.leaves]
        others = [values[var] for var in loss_inputs[len(leaves) :]]

        def rewritten(*leaves: Any) -> Any:
            number = [numbers[0]] if takes_number else []
            results = core.eval_jaxpr(loss.jaxpr, loss.consts, *number, *leaves, *others)
            results = [jnp.asarray(v, var.aval.dtype) for v, var in zip(results, loss.jaxpr.outvars, strict=True)]
            made = [
                v if o.before is None else o.before(v, numbers[0])
                for v, o in zip(results, self.results, strict=True)
            ]
            return made[0], made[1:]

        made = differentiate(rewritten, argnums=tuple(range(len(leaves))), has_aux=True)(*leaves)
        if step.with_value:
            (value, aux), gradients = made
            results = [value, *aux]
        else:
            gradients, aux = made
            results = list(aux)
        shown = self.results if step.with_value else self.results[1:]
        results = [v if o.after is None else o.after(v) for v, o in zip(results, shown, strict=True)]
        known: dict[Any, Any] = dict(zip(self.whole.jaxpr.invars, arguments[:own], strict=True))
        known.update(zip(self.whole.jaxpr.constvars, self.whole.closed.consts, strict=True))
        known.update(zip(whole_batch, extra[len(hoisted) :], strict=False))
        known.update(zip(self.whole.differentiated.outvars, [*results, *gradients], strict=True))
        return list(core.eval_jaxpr(update.jaxpr, update.consts, *(known[var] for var in update_inputs)))

    def _outside(self, loss_inputs: Sequence[Any]) -> _Outside:
        """What is computed before the loss and is the same for all micro-batches."""
        step = self.micro
        leaves = [step.differentiated.invars[place] for place in step.leaves]
        given = {*step.jaxpr.invars, *step.jaxpr.constvars, *self.walk.hoisted}
        others = loss_inputs[len(leaves) :]
        wanted = [var for var in variables_of([*leaves, *others]) if var not in given]
        before = [eqn for eqn in step.jaxpr.eqns[: step.position] if eqn.outvars]
        eqns, inputs = _needed(before, wanted, given)
        return _Outside(core.Jaxpr([], inputs, wanted, eqns), {*inputs, *variables_of(leaves)})


@dataclasses.dataclass(frozen=True)
class _Outside:
    """Equations before the loss, and the variables that they or the loss's own arguments need."""

    jaxpr: core.Jaxpr
    needed: set[Any]


def _needed(
    eqns: Sequence[Any], results: Sequence[Any], given: Set[Any] = frozenset()
) -> tuple[list[Any], list[Any]]:
    """The equations that make results, or that only act, in their order; and the variables that they or results need.

    What is given isn't made, though the results of one equation with what is.
    """
    needed, taken, made = set(variables_of(results)), list[Any](), set[Any]()
    for eqn in reversed(eqns):
        if any(var in needed and var not in given for var in eqn.outvars) or not eqn.outvars:
            taken.append(_without(eqn, given))
            needed.update(variables_of(eqn.invars))
            made.update(var for var in eqn.outvars if var not in given)
    return taken[::-1], sorted(needed - made, key=lambda var: var.count)


def _without(eqn: Any, given: Set[Any]) -> Any:
    """An equation that doesn't make what is given."""
    if not any(var in given for var in eqn.outvars):
        return eqn
    return eqn.replace(outvars=[core.DropVar(var.aval) if var in given else var for var in eqn.outvars])


def _value(atom: Any, values: dict[Any, Any]) -> Any:
    return atom.val if isinstance(atom, core.Literal) else values[atom]
