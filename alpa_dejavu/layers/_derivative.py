"""A layer's derivative, split where the loss has been computed: what runs forward, and what runs backward.

Done once for layers that are alike. What backward needs of forward are its residuals: results that forward has besides
its own. A layer that is rematerialised has none: its backward part computes forward again from the layer's operands.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, final

import jax
from jax import dtypes, lax

from alpa_dejavu._util.jax_api import core, new_jaxpr, without_dead_code
from alpa_dejavu.layers._jaxprs import derived_from, is_in, named, on_names, renamed
from alpa_dejavu.layers.features.structure import structure


@final
class Alike:
    """A jaxpr as a dictionary key: it equals every other one with the same operations on the same shapes."""

    __slots__ = ("jaxpr", "number")

    def __init__(self, jaxpr: core.Jaxpr) -> None:
        self.jaxpr = jaxpr
        self.number = structure(jaxpr)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike) and self.number == other.number

    def __hash__(self) -> int:
        return self.number


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LayerPasses:
    """The forward pass and the backward pass of a layer, as two jaxprs.

    Attributes:
        forward: the forward pass; its results are the layer's, then the residuals, which the backward pass takes.
        backward: the backward pass. It takes the residuals (all of the layer's operands, if the layer is
            rematerialised), then the cotangents of those of the layer's results that have one. Its results are the
            cotangents of the operands that get one.
        reached: for each of the layer's operands, whether it gets a cotangent.
    """

    forward: core.Jaxpr
    backward: core.Jaxpr
    reached: tuple[bool, ...]

    def takers(self, operands: Sequence[core.Var]) -> list[core.Var]:
        """Picks out of a layer's operands those that get a cotangent, in the order of the backward pass's results."""
        return [var for var, has in zip(operands, self.reached, strict=True) if has]


@functools.lru_cache(maxsize=1024)
def depending(layer: Alike, active: tuple[bool, ...]) -> tuple[bool, ...]:
    """Returns which of a layer's results depend on its active operands, which depend on trained parameters."""

    def tangents(operands: list[Any], moves: list[Any]) -> list[Any]:
        of_active = functools.partial(_filled, layer, active, operands)
        slopes: list[Any] = jax.jvp(of_active, list(itertools.compress(operands, active)), moves)[1]
        return slopes

    shapes = [_shape(var) for var in layer.jaxpr.invars]
    moves = list(itertools.compress(shapes, active))
    jaxpr = jax.make_jaxpr(tangents)(shapes, moves).jaxpr
    derived = derived_from(jaxpr.eqns, jaxpr.invars[len(shapes) :])
    return tuple(is_in(slope, derived) for slope in jaxpr.outvars)


def _filled(layer: Alike, active: tuple[bool, ...], operands: Sequence[Any], *chosen: Any) -> list[Any]:
    """A layer's results with its active operands in the place of those among all operands."""
    rest = iter(chosen)
    filled = [next(rest) if on else operand for operand, on in zip(operands, active, strict=True)]
    results: list[Any] = core.eval_jaxpr(layer.jaxpr, (), *filled)
    return results


@functools.lru_cache(maxsize=1024)
def _linearized(
    layer: Alike, active: tuple[bool, ...], pulled: tuple[bool, ...]
) -> tuple[core.Jaxpr, core.Jaxpr]:
    """A layer whose results are followed by residuals, and what takes these, and the cotangents of pulled results, to
    the cotangents of its active operands.
    """
    pullback: list[Any] = []

    def forward(*operands: Any) -> list[Any]:
        def layer_of(*chosen: Any) -> tuple[list[Any], list[Any]]:
            results = _filled(layer, active, operands, *chosen)
            return list(itertools.compress(results, pulled)), results

        _, pull, results = jax.vjp(layer_of, *itertools.compress(operands, active), has_aux=True)
        residuals, tree = jax.tree.flatten(pull)
        pullback.append(tree)
        return [*results, *residuals]

    def backward(residuals: list[Any], cotangents: list[Any]) -> Any:
        return jax.tree.unflatten(pullback[0], residuals)(cotangents)

    ahead = jax.make_jaxpr(forward)(*map(_shape, layer.jaxpr.invars)).jaxpr
    num_results = len(layer.jaxpr.outvars)
    cotangents = [_shape(atom) for atom in itertools.compress(layer.jaxpr.outvars, pulled)]
    back = jax.make_jaxpr(backward)([_shape(atom) for atom in ahead.outvars[num_results:]], cotangents)
    return _unguarded(ahead), _unguarded(back.jaxpr)


def _unguarded(jaxpr: core.Jaxpr) -> core.Jaxpr:
    """A jaxpr without the roundings to the precision that an array has, by which jax guards residuals of checkpoints
    from being found again by XLA.
    """
    names: dict[core.Var, core.Atom] = {}
    equations = []
    for equation in jaxpr.eqns:
        equation = on_names(equation, names)
        if equation.primitive is lax.reduce_precision_p and _keeps_all(equation):
            names[equation.outvars[0]] = equation.invars[0]
        else:
            equations.append(equation)
    return jaxpr.replace(eqns=equations, outvars=[named(names, atom) for atom in jaxpr.outvars]) if names else jaxpr


def _keeps_all(equation: core.JaxprEqn) -> bool:
    bits, precision = dtypes.finfo(equation.invars[0].aval.dtype), equation.params
    return (bits.nexp, bits.nmant) == (precision["exponent_bits"], precision["mantissa_bits"])


@functools.lru_cache(maxsize=1024)
def parts(layer: Alike, active: tuple[bool, ...], pulled: tuple[bool, ...], remat: bool) -> LayerPasses:
    """Differentiates a layer, and returns its forward and its backward jaxpr. It is told of each operand whether it
    depends on trained parameters, and of each result whether the loss depends on it, and it on trained parameters.
    """
    ahead, back = _linearized(layer, active, pulled)
    num_results = len(layer.jaxpr.outvars)
    num_residuals = len(ahead.outvars) - num_results
    derived = derived_from(back.eqns, back.invars[num_residuals:])
    reached = [is_in(slope, derived) for slope in back.outvars]
    instantiate = [False] * num_residuals + [True] * sum(pulled)
    backward, used = without_dead_code(back, reached, instantiate)
    forward, _ = without_dead_code(ahead, [True] * num_results + list(used[:num_residuals]), True)
    answers = iter(reached)
    whole = LayerPasses(forward, backward, tuple(on and next(answers) for on in active))
    return _rematerialised(layer, whole) if remat else whole


def _rematerialised(layer: Alike, whole: LayerPasses) -> LayerPasses:
    num_results = len(layer.jaxpr.outvars)
    residuals = len(whole.forward.outvars) - num_results
    first, results = renamed(whole.forward, whole.forward.invars)
    cotangents = whole.backward.invars[residuals:]
    second, gradients = renamed(whole.backward, [*results[num_results:], *cotangents])
    both = new_jaxpr([*whole.forward.invars, *cotangents], gradients, [*first, *second])
    forward, _ = without_dead_code(layer.jaxpr, [True] * num_results, True)
    backward, _ = without_dead_code(both, [True] * len(gradients), True)
    return LayerPasses(forward, backward, whole.reached)


def _shape(var: core.Atom) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)
