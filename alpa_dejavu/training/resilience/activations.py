"""Activations of any model: what each product of data with weights puts out, to be struck by faults or clipped.

A model is traced to a jaxpr, which is then run with a function after each matrix product and convolution that has
weights on one side. Products of activations with each other, as in attention, and tables that are looked up have none.

What a part of the weights puts out is what comes of its product by elementwise steps, its bias and activation among
them: until then it is `_Held`, and the parts that are removed become zero where anything else uses it.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu._util.jax_api import bound, core, scan_operands
from alpa_dejavu.training._scope import paths_of
from alpa_dejavu.training.resilience.parts import Owner, Parts

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, PyTree

    Model: TypeAlias = Callable[[PyTree, PyTree], Array]
    """Takes parameters and inputs, and returns outputs."""
    Strike: TypeAlias = Callable[[int, "ProductSite", Array], Array]
    """Takes a site's number, the site and what it puts out, and returns what is put out instead."""
    Arrays: TypeAlias = Sequence[Array]
    Origins: TypeAlias = Sequence["_Weights | None"]

__all__ = ["ProductSite", "activation_parts", "clipped", "sites", "with_strikes", "without"]

_PRODUCTS = ("dot_general", "conv_general_dilated")
_CALLS = {"pjit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr", "checkpoint": "jaxpr",
          "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat2": "jaxpr"}  # fmt: skip
_LOOPS = ("while", "cond")
_ELEMENTWISE = frozenset(
    "abs add add_any and cbrt clamp convert_element_type copy cos div eq erf erfc erf_inv exp exp2 expm1 floor ge gt "
    "integer_pow is_finite le log log1p logistic lt max min mul ne neg not or pow reduce_precision rsqrt select_n sign "
    "sin sqrt square sub tan tanh xor".split()
)


@final
@dataclasses.dataclass(frozen=True)
class ProductSite:
    """A product of data with weights in a model.

    Attributes:
        name: the path of its weights; where these are used again, with a number behind.
        shape: the shape of what it puts out; in a scanned loop, of one turn.
        axis: the axis along which its features lie.
    """

    name: str
    shape: tuple[int, ...]
    axis: int


def sites(apply_fn: Model, params: PyTree, inputs: PyTree) -> tuple[tuple[ProductSite, ...], tuple[str, ...]]:
    """Returns the products of data with weights, and the loops whose products aren't reached; shapes are enough."""
    recorded_sites: list[ProductSite] = []

    def recorded(number: int, site: ProductSite, values: Array) -> Array:
        recorded_sites.append(site)
        return values

    run = _traced(recorded, apply_fn, params, inputs)
    return tuple(recorded_sites), tuple(sorted(run.unreached))


def activation_parts(apply_fn: Model, params: PyTree, inputs: PyTree, kind: str = "features") -> Parts:
    """Returns the parts of a model's activations: each site is a group, and a leaf of its own.

    They are "features", each in all samples and places, or "values", single numbers of all samples.
    """
    if kind not in ("features", "values"):
        raise ValueError(f"kind is {kind!r}, but must be 'features' or 'values'; name one of them")
    products, unreached = sites(apply_fn, params, inputs)
    if not products:
        why = f"; loops that aren't reached: {', '.join(unreached)}" if unreached else ""
        raise ValueError(f"apply_fn has no product of data with weights, but must have one{why}; strike its weights")
    sizes = [site.shape[site.axis] if kind == "features" else int(np.prod(site.shape)) for site in products]
    starts = np.cumsum([0, *sizes])
    owners = []
    for site, start, size in zip(products, starts, sizes, strict=False):
        shape = tuple(n if axis == site.axis or kind == "values" else 1 for axis, n in enumerate(site.shape))
        owners.append((Owner((start + np.arange(size)).astype(np.int32).reshape(shape)),))
    names = tuple(site.name for site in products)
    return Parts(f"activations' {kind}", names, tuple(sizes), tuple(owners), tuple(site.shape for site in products))


def with_strikes(apply_fn: Model, strike: Strike) -> Model:
    """Returns a model that is the same but that what each site puts out goes through a function."""
    return lambda params, inputs: _SiteRun(strike).outputs(apply_fn, params, inputs)


def without(apply_fn: Model, parts: Parts, hit: Bool[Array, " units"]) -> Model:
    """Returns a model in which what the hit units of its weights put out is zero, NaN included.

    It raises ValueError where weights are reshaped before their product, so that units can't be followed.
    """

    def removed(params: PyTree, inputs: PyTree) -> Array:
        owners = dict(zip(paths_of(params), parts.owners, strict=True))
        return _SiteRun(lambda number, site, values: values, (owners, hit)).outputs(apply_fn, params, inputs)

    return removed


def clipped(apply_fn: Model, params: PyTree, inputs: PyTree) -> Model:
    """Returns a model whose activations are clipped to the range that they have on some inputs, such as those it was
    trained on, with parameters without faults; NaN becomes 0.

    References:
        Chen, Li and Pattabiraman, A Low-cost Fault Corrector for Deep Neural Networks through Range Restriction, DSN
        2021.
    """
    if _traced(lambda number, site, values: values, apply_fn, params, inputs).is_scanned:
        raise ValueError("apply_fn has a scanned loop, but must have its layers one by one to be clipped; unroll it")

    @jax.jit
    def ranges(params: PyTree, inputs: PyTree) -> list[tuple[Array, Array]]:
        seen: list[tuple[Array, Array]] = []

        def looked(number: int, site: ProductSite, values: Array) -> Array:
            seen.append((values.min(), values.max()))
            return values

        with_strikes(apply_fn, looked)(params, inputs)
        return seen

    bounds = [(float(low), float(high)) for low, high in ranges(params, inputs)]

    def limited(number: int, site: ProductSite, values: Array) -> Array:
        return jnp.clip(jnp.where(jnp.isnan(values), 0, values), *bounds[number])

    return with_strikes(apply_fn, limited)


def _traced(strike: Strike, apply_fn: Model, params: PyTree, inputs: PyTree) -> _SiteRun:
    run = _SiteRun(strike)
    jax.eval_shape(lambda *arguments: run.outputs(apply_fn, *arguments), params, inputs)
    return run


class _Weights(NamedTuple):
    """A value that is made of weights or constants alone: the path of an array, "" for constants, and for each axis
    the array's that it is, -1 for none that is known.
    """

    name: str
    axes: tuple[int, ...] = ()


class _Held(NamedTuple):
    """A value of data of which a part is to be zero before anything but elementwise steps uses it."""

    values: jax.Array
    kept: jax.Array
    key: tuple[str, tuple[int, ...]]


@final
class _SiteRun:
    """One run of a jaxpr, which counts the sites that it comes by, and strikes them.

    Removed are the owners of each array of the weights by its path, and which of their units; None: no units.
    """

    def __init__(self, strike: Strike, removed: tuple[dict[str, tuple[Owner, ...]], jax.Array] | None = None) -> None:
        self._strike, self._removed = strike, removed
        self._names: collections.Counter[str] = collections.Counter()
        self._number = 0
        self.unreached: set[str] = set()
        self.is_scanned = False

    def outputs(self, apply_fn: Model, params: PyTree, inputs: PyTree) -> Array:
        """Returns what the model puts out."""
        closed, shape = jax.make_jaxpr(apply_fn, return_shape=True)(params, inputs)
        leaves = jax.tree.leaves((params, inputs))
        origins: list[_Weights | None] = [_Weights(path, tuple(range(jnp.ndim(leaf))))
                                          for path, leaf in zip(paths_of(params), leaves, strict=False)]  # fmt: skip
        origins += [None] * (len(leaves) - len(origins))
        results, _ = self._run(closed.jaxpr, closed.consts, leaves, origins)
        return jax.tree.unflatten(jax.tree.structure(shape), [*map(_released, results)])

    def _run(
        self, jaxpr: core.Jaxpr, consts: Arrays, values: Arrays, origins: Origins
    ) -> tuple[list[Array], Origins]:
        """Returns what a jaxpr puts out, and for each of it the weights that it was made of alone."""
        by_variable: dict[core.Var, tuple[Array, _Weights | None]] = {
            **dict(zip(jaxpr.constvars, zip(consts, [_Weights("") for _ in consts], strict=True), strict=True)),
            **dict(zip(jaxpr.invars, zip(values, origins, strict=True), strict=True)),
        }

        def read(variable: core.Var | core.Literal) -> tuple[Array, _Weights | None]:
            return (variable.val, _Weights("")) if isinstance(variable, core.Literal) else by_variable[variable]

        for equation in jaxpr.eqns:
            operands, of = zip(*map(read, equation.invars), strict=True) if equation.invars else ((), ())
            results, made_of = self._equation(equation, operands, of)
            by_variable.update(zip(equation.outvars, zip(results, made_of, strict=True), strict=True))
        ends = [read(variable) for variable in jaxpr.outvars]
        return [value for value, _ in ends], [origin for _, origin in ends]

    def _equation(self, equation: core.JaxprEqn, operands: Arrays, of: Origins) -> tuple[Arrays, Origins]:
        name = equation.primitive.name
        if name in _CALLS:
            inner = equation.params[_CALLS[name]]
            return self._run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), operands, of)
        if name == "scan":
            return self._scan(equation, operands, of)
        if name in _LOOPS and any(product in str(equation.params) for product in _PRODUCTS):
            self.unreached.add(name)
        held_values = [value for value in operands if isinstance(value, _Held)]
        keys = {value.key for value in held_values}
        alike = name in _ELEMENTWISE and len(keys) == 1 and len(held_values) == of.count(None)
        operands = [value.values if alike and isinstance(value, _Held) else _released(value) for value in operands]
        results = list(bound(equation, operands))
        if alike:
            results = [held_values[0]._replace(values=result) for result in results]
        origin = None
        if None not in of:
            whole = next((weights for weights in of if weights is not None and weights.name), _Weights(""))
            origin = _Weights(whole.name, _axes(equation, whole.axes))
        elif name in _PRODUCTS:
            sides = [(n, weights) for n, weights in enumerate(of) if weights is not None and weights.name]
            results = [self._site_output(equation, *sides[0], results[0])] if sides else results
        return results, [origin] * len(results)

    def _site_output(self, equation: core.JaxprEqn, side: int, weights: _Weights, values: Array) -> Array:
        name = weights.name
        self._names[name] += 1
        again = self._names[name]
        site = ProductSite(name if again == 1 else f"{name}#{again}", tuple(values.shape), _features(equation, side))
        self._number += 1
        values = self._strike(self._number - 1, site, values)
        return values if self._removed is None else self._held_output(equation, side, weights, values)

    def _held_output(self, equation: core.JaxprEqn, side: int, weights: _Weights, values: Array) -> Array:
        """Returns what a product puts out, held with which of the units are kept whose columns its weights have."""
        assert self._removed is not None
        (owners, hit), kept, axes = self._removed, jnp.ones((), bool), list[int]()
        outputs = _outputs(equation, side)
        for owner in owners[weights.name]:
            if owner.axis is not None and owner.axis not in weights.axes and -1 in weights.axes:
                raise ValueError(f"{weights.name} is reshaped before its product, but must be as it is or transposed "
                                 "where parts are removed; give the fault 'zeroed', or other parts")  # fmt: skip
            axis = None if owner.axis not in weights.axes else outputs.get(weights.axes.index(owner.axis))
            if axis is not None:
                own = ~hit[owner.units.reshape(-1)]
                kept = kept & own.reshape([-1 if n == axis else 1 for n in range(values.ndim)])
                axes.append(axis)
            elif owner.axis is None and owner.units.size == 1:
                kept = kept & ~hit[owner.units.reshape(())]
                axes.append(-1)
        return _Held(values, kept, (weights.name, tuple(axes))) if axes else values

    def _scan(self, equation: core.JaxprEqn, operands: Arrays, of: Origins) -> tuple[Arrays, Origins]:
        """Runs a scanned loop whose body is struck in each turn alike."""
        self.is_scanned = True
        settings = equation.params
        consts, num_carried = scan_operands(settings)
        carried = consts + num_carried
        inner = settings["jaxpr"]
        operands = [*map(_released, operands)]
        turns = [None if weights is None else weights._replace(axes=weights.axes[1:]) for weights in of[carried:]]
        origins = [*of[:consts], *[None] * num_carried, *turns]

        def body(carry: Arrays, turn: Arrays) -> tuple[Arrays, Arrays]:
            results, _ = self._run(inner.jaxpr, inner.consts, [*operands[:consts], *carry, *turn], origins)
            results = [*map(_released, results)]
            return results[: num_carried], results[num_carried :]

        last, every = jax.lax.scan(
            body, list(operands[consts:carried]), list(operands[carried:]), settings["length"], settings["reverse"],
            settings["unroll"],
        )  # fmt: skip
        results = [*last, *every]
        return results, [None] * len(results)


def _released(value: Array | _Held) -> Array:
    """Returns a value as others than elementwise steps may use it."""
    return jnp.where(value.kept, value.values, jnp.zeros_like(value.values)) if isinstance(value, _Held) else value


def _axes(equation: core.JaxprEqn, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of an array of weights after a step of its own; -1 where they aren't known."""
    name, shape = equation.primitive.name, equation.outvars[0].aval.shape
    before = next((variable.aval.shape for variable in equation.invars if len(variable.aval.shape) == len(axes)), ())
    if not axes:
        return (-1,) * len(shape)
    if name == "transpose":
        return tuple(axes[n] for n in equation.params["permutation"])
    if name == "squeeze":
        return tuple(axis for n, axis in enumerate(axes) if n not in equation.params["dimensions"])
    if name == "broadcast_in_dim":
        places = dict(zip(equation.params["broadcast_dimensions"], axes, strict=True))
        return tuple(places.get(n, -1) for n in range(len(shape)))
    if len(shape) == len(axes) and (name in _ELEMENTWISE or name in ("slice", "dynamic_slice")):
        return tuple(axis if old == new else -1 for axis, old, new in zip(axes, before, shape, strict=True))
    return (-1,) * len(shape)


def _outputs(equation: core.JaxprEqn, side: int) -> dict[int, int]:
    """For each free axis of a product's weights the axis of its output."""
    numbers = equation.params["dimension_numbers"]
    if equation.primitive.name == "conv_general_dilated":
        return {numbers.rhs_spec[0]: numbers.out_spec[1]} if side == 1 else {}
    contracted, batched = numbers
    free = [n for n in range(len(equation.invars[side].aval.shape)) if n not in (*contracted[side], *batched[side])]
    first = len(equation.outvars[0].aval.shape) - len(free) if side == 1 else len(batched[0])
    return {**{n: place for place, n in enumerate(batched[side])}, **{n: first + k for k, n in enumerate(free)}}


def _features(equation: core.JaxprEqn, side: int) -> int:
    """Returns the axis of a product's output that comes from the weights' free axes: the last of them."""
    numbers = equation.params["dimension_numbers"]
    if equation.primitive.name == "conv_general_dilated":
        return int(numbers.out_spec[1])
    last = max(_outputs(equation, side).values(), default=-1)
    return last if last >= len(numbers[1][0]) else len(equation.outvars[0].aval.shape) - 1
