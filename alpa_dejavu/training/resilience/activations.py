"""Activations of any model: what each product of data with weights puts out, to be struck by faults or clipped.

A model is traced to a jaxpr, which is then run with a function after each matrix product and convolution that has
weights on one side. Products of activations with each other, as in attention, and tables that are looked up have none.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu.training.resilience.parts import Owner, Parts, paths_of

__all__ = ["Site", "activation_parts", "clipped", "sites", "with_strikes"]

Model: TypeAlias = Callable[[Any, Any], Any]
"""Takes parameters and inputs."""
_PRODUCTS = ("dot_general", "conv_general_dilated")
_CALLS = {"pjit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr", "checkpoint": "jaxpr",
          "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat2": "jaxpr"}  # fmt: skip
_LOOPS = ("while", "cond")


@final
@dataclasses.dataclass(frozen=True)
class Site:
    """A product of data with weights in a model.

    Attributes:
        name: the path of its weights; where these are used again, with a number behind.
        shape: the shape of what it puts out; in a scanned loop, of one turn.
        axis: the axis along which its features lie.
    """

    name: str
    shape: tuple[int, ...]
    axis: int


Strike: TypeAlias = Callable[[int, Site, Any], Any]
"""Takes a site's number, the site and what it puts out, and returns what is put out instead."""


def sites(apply_fn: Model, params: Any, inputs: Any) -> tuple[tuple[Site, ...], tuple[str, ...]]:
    """Returns the products of data with weights in a model, and the names of loops whose products aren't reached.

    Args:
        apply_fn: the model.
        params: its parameters, or their shapes.
        inputs: what it is applied to, or its shapes.
    """
    found: list[Site] = []

    def recorded(number: int, site: Site, values: Any) -> Any:
        del number
        found.append(site)
        return values

    run = _Run(recorded)
    jax.eval_shape(lambda *given: run.outputs(apply_fn, *given), params, inputs)
    return tuple(found), tuple(sorted(run.unreached))


def activation_parts(apply_fn: Model, params: Any, inputs: Any, kind: str = "features") -> Parts:
    """Returns the parts of a model's activations: each site is a group, and a leaf of its own.

    Args:
        apply_fn: the model.
        params: its parameters, or their shapes.
        inputs: what it is applied to, or its shapes.
        kind: "features", each in all samples and places, or "values", single numbers of all samples.

    Raises:
        ValueError: there is no such kind, or the model has no product with weights.
    """
    if kind not in ("features", "values"):
        raise ValueError(f"kind is {kind!r}, but must be 'features' or 'values'; name one of them")
    found, unreached = sites(apply_fn, params, inputs)
    if not found:
        said = f"; loops that aren't reached: {', '.join(unreached)}" if unreached else ""
        raise ValueError(f"apply_fn has no product of data with weights, but must have one{said}; strike its weights")
    sizes = [site.shape[site.axis] if kind == "features" else int(np.prod(site.shape)) for site in found]
    starts = np.cumsum([0, *sizes])
    owners = []
    for site, start, size in zip(found, starts, sizes, strict=False):
        shape = tuple(n if axis == site.axis or kind == "values" else 1 for axis, n in enumerate(site.shape))
        owners.append((Owner((start + np.arange(size)).astype(np.int32).reshape(shape)),))
    names = tuple(site.name for site in found)
    return Parts(f"activations' {kind}", names, tuple(sizes), tuple(owners), tuple(site.shape for site in found))


def with_strikes(apply_fn: Model, strike: Strike) -> Model:
    """Returns a model that is the same but that what each site puts out goes through a function."""

    def struck(params: Any, inputs: Any) -> Any:
        return _Run(strike).outputs(apply_fn, params, inputs)

    return struck


def clipped(apply_fn: Model, params: Any, inputs: Any, margin: float = 0.0) -> Model:
    """Returns a model whose activations are clipped to the range that they have on some inputs; NaN becomes 0.

    Args:
        apply_fn: the model.
        params: its parameters, without faults.
        inputs: inputs that show the ranges, such as those it was trained on.
        margin: what a range is widened by to either side, as a share of its width.

    References:
        Chen, Li and Pattabiraman, A Low-cost Fault Corrector for Deep Neural Networks through Range Restriction, DSN
        2021.
    """

    @jax.jit
    def ranges(params: Any, inputs: Any) -> Any:
        seen: list[tuple[Any, Any]] = []

        def looked(number: int, site: Site, values: Any) -> Any:
            del number, site
            seen.append((values.min(), values.max()))
            return values

        with_strikes(apply_fn, looked)(params, inputs)
        return seen

    if any(each.startswith("scan") for each in _looped(apply_fn, params, inputs)):
        raise ValueError("apply_fn has a scanned loop, but must have its layers one by one to be clipped; unroll it")
    bounds = [(float(low), float(high)) for low, high in ranges(params, inputs)]

    def limited(number: int, site: Site, values: Any) -> Any:
        del site
        low, high = bounds[number]
        more = margin * (high - low)
        return jnp.clip(jnp.where(jnp.isnan(values), 0, values), low - more, high + more)

    return with_strikes(apply_fn, limited)


def _looped(apply_fn: Model, params: Any, inputs: Any) -> list[str]:
    run = _Run(lambda number, site, values: values)
    jax.eval_shape(lambda *given: run.outputs(apply_fn, *given), params, inputs)
    return run.scanned


@final
class _Run:
    """One run of a jaxpr, which counts the sites that it comes by."""

    def __init__(self, strike: Strike) -> None:
        self._strike = strike
        self._names: collections.Counter[str] = collections.Counter()
        self._number = 0
        self.unreached: set[str] = set()
        self.scanned: list[str] = []

    def outputs(self, apply_fn: Model, params: Any, inputs: Any) -> Any:
        """Returns what the model puts out."""
        closed, shape = jax.make_jaxpr(apply_fn, return_shape=True)(params, inputs)
        leaves = jax.tree_util.tree_leaves((params, inputs))
        origins: list[str | None] = [*paths_of(params)]
        origins += [None] * (len(leaves) - len(origins))
        made, _ = self._run(closed.jaxpr, closed.consts, leaves, origins)
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shape), made)

    def _run(
        self, jaxpr: Any, consts: Sequence[Any], values: Sequence[Any], origins: Sequence[str | None]
    ) -> tuple[list[Any], list[str | None]]:
        """Returns what a jaxpr puts out, and for each of it the path of the weights that it was made of alone."""
        known = {
            **dict(zip(jaxpr.constvars, zip(consts, ["" for _ in consts], strict=True), strict=True)),
            **dict(zip(jaxpr.invars, zip(values, origins, strict=True), strict=True)),
        }

        def read(variable: Any) -> tuple[Any, str | None]:
            return (variable.val, "") if isinstance(variable, jax.core.Literal) else known[variable]

        for equation in jaxpr.eqns:
            given, of = zip(*map(read, equation.invars), strict=True) if equation.invars else ((), ())
            made, made_of = self._equation(equation, given, of)
            known.update(zip(equation.outvars, zip(made, made_of, strict=True), strict=True))
        ends = [read(variable) for variable in jaxpr.outvars]
        return [value for value, _ in ends], [origin for _, origin in ends]

    def _equation(
        self, equation: Any, given: Sequence[Any], of: Sequence[str | None]
    ) -> tuple[Sequence[Any], Sequence[str | None]]:
        name = equation.primitive.name
        if name in _CALLS:
            inner = equation.params[_CALLS[name]]
            return self._run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), given, of)
        if name == "scan":
            return self._scan(equation, given, of)
        if name in _LOOPS and any(each in str(equation.params) for each in _PRODUCTS):
            self.unreached.add(name)
        made = equation.primitive.bind(*given, **equation.params)
        made = made if equation.primitive.multiple_results else [made]
        origin = next((each for each in of if each), "") if None not in of else None
        if name in _PRODUCTS and origin is None and (weights := [n for n in (0, 1) if of[n]]):
            made = [self._struck(equation, weights[0], str(of[weights[0]]), made[0])]
        return made, [origin] * len(made)

    def _struck(self, equation: Any, side: int, name: str, values: Any) -> Any:
        self._names[name] += 1
        again = self._names[name]
        site = Site(name if again == 1 else f"{name}#{again}", tuple(values.shape), _features(equation, side))
        self._number += 1
        return self._strike(self._number - 1, site, values)

    def _scan(
        self, equation: Any, given: Sequence[Any], of: Sequence[str | None]
    ) -> tuple[Sequence[Any], Sequence[str | None]]:
        """Runs a scanned loop whose body is struck in each turn alike."""
        self.scanned.append("scan")
        settings = equation.params
        consts, carried = settings["num_consts"], settings["num_consts"] + settings["num_carry"]
        inner = settings["jaxpr"]
        origins = [*of[:consts], *[None] * settings["num_carry"], *of[carried:]]

        def body(carry: Sequence[Any], turn: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            made, _ = self._run(inner.jaxpr, inner.consts, [*given[:consts], *carry, *turn], origins)
            return made[: settings["num_carry"]], made[settings["num_carry"] :]

        last, every = jax.lax.scan(
            body, list(given[consts:carried]), list(given[carried:]), settings["length"], settings["reverse"],
            settings["unroll"],
        )  # fmt: skip
        made = [*last, *every]
        return made, [None] * len(made)


def _features(equation: Any, side: int) -> int:
    """Returns the axis of a product's output that comes from the weights' free axes: the last of them."""
    rank = len(equation.outvars[0].aval.shape)
    if equation.primitive.name == "conv_general_dilated":
        return int(equation.params["dimension_numbers"].out_spec[1])
    (contracted, batched) = equation.params["dimension_numbers"]
    weights = equation.invars[side].aval.shape
    free = len(weights) - len(contracted[side]) - len(batched[side])
    if not free:
        return rank - 1
    return rank - 1 if side == 1 else len(batched[0]) + free - 1
