"""A layer's derivative, split where the loss has been computed: what runs forward, and what runs backward.

Done once for layers that are alike. What backward needs of forward are its residuals: results that forward has besides
its own. A layer that is rematerialised has none: its backward part computes forward again from the layer's operands.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, final

import jax
from jax import core
from jax._src import linear_util
from jax._src.interpreters import ad, partial_eval

from alpa_dejavu.layers._jaxprs import renamed
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
class Linear:
    """A layer's derivative by its active operands: the layer, whose results are followed by residuals, and the linear
    part, which takes these as constants and the tangents of active operands. `active` says which results depend on
    those.
    """

    forward: core.Jaxpr
    tangents: core.Jaxpr
    active: tuple[bool, ...]


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
def linear(layer: Alike, active: tuple[bool, ...]) -> Linear:
    """Returns a layer's derivative by its active operands, which depend on trained parameters."""
    saved: dict[str, Any] = {}

    def run(*operands: Any) -> list[Any]:
        def layer_of(*chosen: Any) -> list[Any]:
            rest = iter(chosen)
            filled = [next(rest) if on else operand for operand, on in zip(operands, active, strict=True)]
            return core.eval_jaxpr(layer.jaxpr, (), *filled)

        chosen = [operand for operand, on in zip(operands, active, strict=True) if on]
        results, tangents, jaxpr, residuals = ad.linearize(linear_util.wrap_init(layer_of), *chosen)
        saved.update(tangents=jaxpr, active=tuple(not tangent.is_known() for tangent in tangents))
        return [*results, *residuals]

    forward = jax.make_jaxpr(run)(*map(_shape, layer.jaxpr.invars))
    return Linear(forward.jaxpr, saved["tangents"], saved["active"])


@functools.lru_cache(maxsize=1024)
def parts(layer: Alike, active: tuple[bool, ...], pulled: tuple[bool, ...], remat: bool) -> LayerPasses:
    """Differentiates a layer, and returns its forward and its backward jaxpr. It is told of each operand whether it
    depends on trained parameters, and of each result whether the loss depends on it.
    """
    split = linear(layer, active)
    reached: list[bool] = []
    residuals = list(split.tangents.constvars)
    # For each result that depends on active operands, whether it has a cotangent.
    has = [on for on, depends in zip(pulled, split.active, strict=True) if depends]
    with_cotangent = [var for var, on in zip(split.tangents.outvars, has, strict=True) if on]

    def run(*operands: Any) -> list[Any]:
        kept, rest = operands[: len(residuals)], iter(operands[len(residuals) :])
        cotangents = [
            next(rest) if on else ad.Zero(atom.aval) for atom, on in zip(split.tangents.outvars, has, strict=True)
        ]
        unknown = [ad.UndefinedPrimal(var.aval) for var in split.tangents.invars]
        slopes = ad.backward_pass(split.tangents, True, kept, unknown, cotangents)
        reached.extend(not isinstance(slope, ad.Zero) for slope in slopes)
        return [slope for slope in slopes if not isinstance(slope, ad.Zero)]

    backward = jax.make_jaxpr(run)(*map(_shape, (*residuals, *with_cotangent))).jaxpr
    instantiate = [False] * len(residuals) + [True] * (len(backward.invars) - len(residuals))
    backward, used = partial_eval.dce_jaxpr(backward, [True] * len(backward.outvars), instantiate=instantiate)
    num_results = len(layer.jaxpr.outvars)
    needed = [True] * num_results + list(used[: len(residuals)])
    forward, _ = partial_eval.dce_jaxpr(split.forward, needed, instantiate=True)
    answers = iter(reached)
    whole = LayerPasses(forward, backward, tuple(on and next(answers) for on in active))
    return _rematerialised(layer, whole) if remat else whole


def _rematerialised(layer: Alike, whole: LayerPasses) -> LayerPasses:
    num_results = len(layer.jaxpr.outvars)
    residuals = len(whole.forward.outvars) - num_results
    first, results = renamed(whole.forward, whole.forward.invars)
    cotangents = whole.backward.invars[residuals:]
    second, gradients = renamed(whole.backward, [*results[num_results:], *cotangents])
    both = core.Jaxpr((), [*whole.forward.invars, *cotangents], gradients, [*first, *second])
    forward, _ = partial_eval.dce_jaxpr(layer.jaxpr, [True] * num_results, instantiate=True)
    backward, _ = partial_eval.dce_jaxpr(both, [True] * len(gradients), instantiate=True)
    return LayerPasses(forward, backward, whole.reached)


def _shape(var: core.Var) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)
