"""The relations of all values of a step's forward pass, and what mends those that can't be put together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from jax import core

from alpa_stock_jax._batch_operation import Operation, as_sum
from alpa_stock_jax._batch_relation import Pair, Relation, join_origins, literal, same, unknown
from alpa_stock_jax._batch_rules import relate

__all__ = ["BatchWalk", "Differs"]

_CALLS = {"pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "named_call": "call_jaxpr",
          "checkpoint": "jaxpr", "remat": "jaxpr", "remat2": "jaxpr", "custom_jvp_call": "call_jaxpr",
          "custom_vjp_call_jaxpr": "fun_jaxpr"}  # fmt: skip
_SUMS = ("add", "sub", "add_any", "concatenate")


class Differs(Exception):
    """The step does other operations with a micro-batch than with the whole batch."""


@dataclasses.dataclass
class BatchWalk:
    """Reads equations of both traces side by side.

    Attributes:
        micro_batches, micro_batch: their number, and the samples of each.
        mends: whether something is done where relations aren't known (see `hoisted` and `corrections`).
        relations: those known so far, by the micro-batch's variables.
        hoisted: the variables that the whole batch gives alone, and that a micro-batch can't be computed without: the
            micro-batch's and the batch's. They count as that from where they are made, so whoever finds one that is new
            follows the step again.
        names: what a variable of the loss is called in the step: an argument's variable or literal, in both traces.
        corrections: what an equation's operand (equation, position) is multiplied by, so that all terms of a sum over
            the batch are scaled alike.
    """

    micro_batches: int
    micro_batch: int
    mends: bool = True
    relations: dict[Any, Relation] = dataclasses.field(default_factory=dict)
    hoisted: dict[Any, Any] = dataclasses.field(default_factory=dict)
    names: dict[Any, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    corrections: dict[tuple[int, int], float] = dataclasses.field(default_factory=dict)

    def bind(self, micro: Sequence[Any], given: Sequence[Relation]) -> None:
        """Notes the relations of variables."""
        for var, relation in zip(micro, given, strict=True):
            if not isinstance(var, core.DropVar):
                self.relations[var] = self._from_the_batch(var) or relation

    def _from_the_batch(self, micro: Any) -> Relation | None:
        whole = self.hoisted.get(micro)
        if whole is None:
            return None
        return same("batch") if Pair.of(micro, whole).alike else Relation("rows", origin="batch")

    def constants(self, micro: core.ClosedJaxpr, whole: core.ClosedJaxpr) -> None:
        """Notes the relations of two jaxprs' constants."""
        if len(micro.consts) != len(whole.consts):
            raise Differs
        pairs = zip(micro.consts, whole.consts, strict=True)
        self.bind(micro.jaxpr.constvars, [literal(*pair, self.micro_batches) for pair in pairs])

    def read(self, micro: Any, whole: Any) -> Relation:
        """The relation of a variable or a literal."""
        if isinstance(micro, core.Literal):
            if not isinstance(whole, core.Literal):
                raise Differs
            return literal(micro.val, whole.val, self.micro_batches)
        return self.relations[micro]

    def follow(self, micro: Sequence[Any], whole: Sequence[Any]) -> None:
        """Follows equations; what can be mended is (see `hoisted` and `corrections`)."""
        for small, large in _side_by_side(micro, whole):
            made = self._results(small, large)
            if not _known(made):
                made = self._mended(small, large) or made
            self.bind(small.outvars, made)

    def finish(self, micro: Any, whole: Any) -> Relation:
        """The relation of a result; one that the batch gives alone is taken from there where it isn't known."""
        relation = self.read(micro, whole)
        if relation.kind == "unknown" and self.mends and self._hoist(micro, whole):
            relation = self.relations[micro]
        return relation

    def _results(self, small: Any, large: Any) -> list[Relation]:
        given = [
            relation if (factor := self.corrections.get((id(small), n))) is None
            else dataclasses.replace(as_sum(relation, self.micro_batches) or relation).times(1 / factor)
            for n, relation in enumerate(map(self.read, small.invars, large.invars))
        ]  # fmt: skip
        return self._relate(small, large, given)

    def _relate(self, small: Any, large: Any, given: list[Relation]) -> list[Relation]:
        operation = Operation(small, large, tuple(given), self.micro_batches, self.micro_batch)
        name = operation.name
        if name in _CALLS:
            return self._inside(small.params[_CALLS[name]], large.params[_CALLS[name]], given)
        if name == "cond" and given[0].plain:
            return self._branches(operation)
        if name == "scan":
            return self._scan(operation)
        return relate(operation)

    def _inside(self, micro: Any, whole: Any, given: Sequence[Relation]) -> list[Relation]:
        """The results of a jaxpr in a parameter; nothing is mended there."""
        walk = BatchWalk(self.micro_batches, self.micro_batch)
        if isinstance(micro, core.ClosedJaxpr):
            walk.constants(micro, whole)
            micro, whole = micro.jaxpr, whole.jaxpr
        walk.bind(micro.invars, given)
        for small, large in _side_by_side(micro.eqns, whole.eqns):
            walk.bind(small.outvars, walk._results(small, large))
        return [walk.read(*pair) for pair in zip(micro.outvars, whole.outvars, strict=True)]

    def _branches(self, operation: Operation) -> list[Relation]:
        pairs = zip(operation.micro.params["branches"], operation.whole.params["branches"], strict=True)
        branches = [self._inside(*pair, operation.given[1:]) for pair in pairs]
        origin = join_origins(operation.given)
        return [
            dataclasses.replace(joined, origin=origin) if (joined := _joined(*results))
            else unknown(f"{operation.place} gives other kinds of values in its branches", origin)
            for results in zip(*branches, strict=True)
        ]  # fmt: skip

    def _scan(self, operation: Operation) -> list[Relation]:
        params = operation.params
        consts, carries, length = params["num_consts"], params["num_carry"], params["length"]
        given = list(operation.given)
        for n, (relation, pair) in enumerate(zip(given, operation.operands, strict=True)):
            if n >= consts + carries and relation.kind in ("rows", "index"):
                if pair.axis == 0 or relation.before % length:
                    return operation.unknown("goes along the batch")
                given[n] = dataclasses.replace(relation, before=relation.before // length)
        jaxprs = params["jaxpr"], operation.whole.params["jaxpr"]
        for _ in range(carries + 2):
            made = self._inside(*jaxprs, given)
            joined = [_joined(*pair) for pair in zip(given[consts : consts + carries], made[:carries], strict=True)]
            if None in joined:
                return operation.unknown("carries values of several kinds from step to step")
            if joined == given[consts : consts + carries]:
                break
            given[consts : consts + carries] = joined  # type: ignore[assignment]
        stacked = [
            dataclasses.replace(relation, before=relation.before * length) if relation.kind == "rows" else relation
            for relation in made[carries:]
        ]
        return [*made[:carries], *stacked]

    def _mended(self, small: Any, large: Any) -> list[Relation] | None:
        """The relations of an equation's results after something was done by which they are known, or None."""
        if not self.mends:
            return None
        if self._correct(small, large):
            return self._results(small, large)
        before = dict(self.relations), dict(self.hoisted)
        hoisted = [self._hoist(*pair) for pair in zip(small.invars, large.invars, strict=True)]
        if any(hoisted):
            made = self._results(small, large)
            if _known(made):
                return made
            self.relations, self.hoisted = before
        return None

    def _correct(self, small: Any, large: Any) -> bool:
        """Scales the terms of a sum alike."""
        given = [self.read(*pair) for pair in zip(small.invars, large.invars, strict=True)]
        parts = [as_sum(relation, self.micro_batches) for relation in given]
        pairs = [Pair.of(*pair) for pair in zip(small.invars, large.invars, strict=True)]
        floating = all(var.aval.dtype.kind in "fcV" for var in small.outvars)
        summed = [relation for relation in given if relation.is_sum]
        if small.primitive.name not in _SUMS or not floating or not summed or not all(pair.alike for pair in pairs):
            return False
        if any(part is None for part in parts):
            return False
        target = summed[0].scale
        for n, (relation, part) in enumerate(zip(given, parts, strict=True)):
            if part is not None and not relation.zero and not math.isclose(part.scale, target, rel_tol=1e-6):
                self.corrections[id(small), n] = part.scale / target
        return True

    def _hoist(self, micro: Any, whole: Any) -> bool:
        """Whether a value is taken from the whole batch, which gives it alone."""
        if isinstance(micro, core.Literal):
            return False
        relation, pair = self.relations[micro], Pair.of(micro, whole)
        if relation.origin == "other" or relation.plain or relation.kind == "rows":
            return False
        leading = pair.axis == 0 and pair.whole[0] == self.micro_batches * pair.micro[0]
        if not pair.alike and not leading:
            return False
        own, batch = self.names.get(micro, (micro, whole))
        if isinstance(own, core.Literal):
            return False
        self.hoisted[own] = batch
        self.relations[micro] = same("batch") if pair.alike else Relation("rows", origin="batch")
        return True


def _known(relations: Sequence[Relation]) -> bool:
    return all(relation.kind != "unknown" for relation in relations)


def _joined(*relations: Relation) -> Relation | None:
    """The one relation that holds whichever of several holds, or None."""
    known = [relation for relation in relations if not relation.zero] or list(relations[:1])
    first = known[0]
    for relation in known[1:]:
        if dataclasses.replace(relation, origin=first.origin) != first:
            return None
    zero = all(relation.zero for relation in relations)
    return dataclasses.replace(first, zero=zero, origin=join_origins(relations))


def _side_by_side(micro: Sequence[Any], whole: Sequence[Any]) -> list[tuple[Any, Any]]:
    if [eqn.primitive for eqn in micro] != [eqn.primitive for eqn in whole]:
        raise Differs
    return list(zip(micro, whole, strict=True))
