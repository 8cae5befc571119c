"""A jaxpr with calls, remat, loops and branches unrolled into one list of plain operations.

Calls (pjit, remat, custom_jvp, custom_vjp, named calls) are inlined; fused kernels of attention are one operation each.
A scan's body is listed once, with the number of its trips; a while loop's trips aren't known beforehand and count once;
of a cond's branches the one with the most operations stands for all.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from alpa_dejavu._util.jax_api import core, scan_operands
from alpa_dejavu.layers._jaxprs import MARKER as MARKER
from alpa_dejavu.layers._jaxprs import called
from alpa_dejavu.layers.attention._calls import call_of
from alpa_dejavu.layers.attention.kernel import AttentionKernel, attention_p


def product_flop(
    primitive: str, params: Mapping[str, Any], operands: Sequence[Any], results: Sequence[Any]
) -> float | None:
    """Returns the operations of an equation that is a matrix product or a convolution, as XLA counts them; None for any
    other. The operands and results are atoms of a jaxpr, or values with a shape.

    References:
        `HloCostAnalysis::GetDotFlops` and `GetConvolutionFlops` in XLA (hlo_cost_analysis.cc).
    """
    if primitive not in ("dot_general", "conv_general_dilated"):
        return None
    left, right, result = (tuple(getattr(x, "aval", x).shape) for x in (*operands[:2], results[0]))
    if primitive == "dot_general":
        contracted = params["dimension_numbers"][0][0]
        return 2.0 * math.prod(result) * math.prod(left[d] for d in contracted)
    return _convolution_flop(params, left, right, result)


def _convolution_flop(
    params: Mapping[str, Any], image: Sequence[int], kernel: Sequence[int], result: Sequence[int]
) -> float:
    """Two operations for each multiply-add that meets no padding and no dilation's hole."""
    numbers = params["dimension_numbers"]
    images, features, *image_space = numbers.lhs_spec
    kernel_features, _, *kernel_space = numbers.rhs_spec
    _, _, *result_space = numbers.out_spec
    valid = 1
    for n, (low, _) in enumerate(params["padding"]):
        valid *= _valid_positions(
            image[image_space[n]],
            kernel[kernel_space[n]],
            result[result_space[n]],
            params["window_strides"][n],
            low,
            params["lhs_dilation"][n],
            params["rhs_dilation"][n],
        )
    per_position = image[features] // params["feature_group_count"] * kernel[kernel_features]
    return 2.0 * per_position * (image[images] // params["batch_group_count"]) * valid


@functools.lru_cache(maxsize=4096)
def _valid_positions(image: int, kernel: int, result: int, stride: int, low: int, base: int, window: int) -> int:
    """Pairs of a result's and a kernel's position along one dimension that meet an element of the image."""
    where = np.arange(result)[:, None] * stride - low + np.arange(kernel)[None, :] * window
    return int(((where % base == 0) & (where >= 0) & (where < image * base)).sum())


ATTENTION = attention_p.name
"""The primitive of a step that is a fused kernel of attention; its parameter `kernel` has the sizes."""


@final
class Value:
    """A value in a flattened jaxpr: an array, or something without dimensions and bytes; equal to itself alone."""

    __slots__ = ("aval", "constant", "num_bytes", "shape", "size")

    def __init__(self, aval: Any, constant: bool = False) -> None:
        self.aval = aval
        self.constant = constant
        self.shape: tuple[int, ...] = tuple(getattr(aval, "shape", ()))
        self.size = math.prod(self.shape)
        self.num_bytes = float(self.size * getattr(getattr(aval, "dtype", None), "itemsize", 0))

    @property
    def dtype(self) -> str:
        """Returns the element type of the value by its name in numpy."""
        return _name(getattr(self.aval, "dtype", "float32"))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One operation of a flattened jaxpr: its primitive, operands and results, and how often it runs (`trips`).

    The loop-carried values of a `lax.scan` are copies: the copy before the first trip has the parameter `enters`, and
    the copy at the end of a trip has `carried`, the value that the next trip begins with. That at the end of a while
    loop's trip has `repeats`, the value that the first trip begins with.
    """

    primitive: str
    params: dict[str, Any]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    trips: float


@functools.lru_cache(maxsize=64)
def _name(dtype: Any) -> str:
    return str(dtype)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Opened:
    """A fused kernel of attention as a step, and as the operations that it stands for: those from `first` to `last`."""

    step: Step
    first: int
    last: int


@final
class Flattener:
    """A collector of a jaxpr's operations in one flat list of steps, with calls, loops and branches unrolled.

    Args:
        opens: whether the operations that a fused kernel of attention stands for are listed in place of the kernel;
            the kernels are then in `opened`.
    """

    def __init__(self, opens: bool = False) -> None:
        self.steps: list[Step] = []
        self.opened: list[Opened] = []
        self._opens = opens
        self._path: list[str] = []

    def walk(self, jaxpr: core.Jaxpr, inputs: Sequence[Value], trips: float = 1.0) -> list[Value]:
        """Appends a jaxpr's operations on the given input values to the flat list, and returns its result values."""
        env: dict[core.Var, Value] = {var: Value(var.aval, constant=True) for var in jaxpr.constvars}
        env.update(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> Value:
            return Value(atom.aval, constant=True) if isinstance(atom, core.Literal) else env[atom]

        for eqn in jaxpr.eqns:
            values = [read(atom) for atom in eqn.invars]
            env.update(zip(eqn.outvars, self._equation(eqn, values, trips), strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: core.JaxprEqn, inputs: list[Value], trips: float) -> list[Value]:
        name = eqn.primitive.name
        if name == "scan":
            return self._scan(eqn, inputs, trips)
        if name == "while":
            return self._while(eqn, inputs, trips)
        if name == "cond":
            return self.walk(heaviest([branch.jaxpr for branch in eqn.params["branches"]]), inputs[1:], trips)
        if eqn.primitive is attention_p:
            return self._attention(eqn, eqn.params["kernel"], eqn.params["jaxpr"], inputs, trips)
        inner, _ = called(eqn)
        if inner is not None:
            self._path.append(str(eqn.params.get("name", "")))
            outputs = self.walk(inner, inputs, trips)
            self._path.pop()
            return outputs
        call = call_of(eqn, self._path)
        if call is not None:
            return self._attention(eqn, call.kernel, call.body, inputs, trips)
        outputs = [Value(var.aval) for var in eqn.outvars]
        if name == "split":
            self._slices(inputs[0], outputs, eqn.params["axis"], trips)
        else:
            self._emit(name, inputs, outputs, trips, eqn.params)
        return outputs

    def _slices(self, source: Value, parts: Sequence[Value], axis: int, trips: float) -> None:
        """Appends a slice for each part of a value along a dimension."""
        first = 0
        for part in parts:
            start, limit = [0] * len(source.shape), list(source.shape)
            start[axis], limit[axis] = first, first + part.shape[axis]
            first = limit[axis]
            params = {"start_indices": tuple(start), "limit_indices": tuple(limit), "strides": None}
            self._emit("slice", [source], [part], trips, params)

    def _attention(
        self, eqn: core.JaxprEqn, kernel: AttentionKernel, body: core.Jaxpr, inputs: Sequence[Value], trips: float
    ) -> list[Value]:
        first = len(self.steps)
        outputs = self.walk(body, inputs, trips) if self._opens else [Value(var.aval) for var in eqn.outvars]
        step = Step(ATTENTION, {"kernel": kernel}, tuple(inputs), tuple(outputs), trips)
        if self._opens:
            self.opened.append(Opened(step, first, len(self.steps)))
        else:
            self.steps.append(step)
        return outputs

    def _emit(
        self, name: str, inputs: Sequence[Value], outputs: Sequence[Value], trips: float, params: Any = None
    ) -> None:
        self.steps.append(Step(name, params or {}, tuple(inputs), tuple(outputs), trips))

    def _pass(self, name: str, source: Value, aval: Any, trips: float, params: Any = None) -> Value:
        """A value that only changes its name, or is one slice of the source."""
        result = Value(aval, source.constant)
        self._emit(name, [source], [result], trips, params)
        return result

    def _scan(self, eqn: core.JaxprEqn, inputs: list[Value], trips: float) -> list[Value]:
        body, length = eqn.params["jaxpr"].jaxpr, float(eqn.params["length"])
        num_consts, num_carry = scan_operands(eqn.params)
        inner = list(inputs[:num_consts])
        for n, var in enumerate(body.invars[num_consts:], start=num_consts):
            name, params = ("copy", {"enters": True}) if n < num_consts + num_carry else ("slice", None)
            inner.append(self._pass(name, inputs[n], var.aval, trips * length, params))
        results = self.walk(body, inner, trips * length)
        carries = [{"carried": value} for value in inner[num_consts : num_consts + num_carry]]
        return [
            self._pass("copy", value, var.aval, trips * length, carries[n])
            if n < num_carry
            else self._pass("stack", value, var.aval, trips * length)
            for n, (value, var) in enumerate(zip(results, eqn.outvars, strict=True))
        ]

    def _while(self, eqn: core.JaxprEqn, inputs: list[Value], trips: float) -> list[Value]:
        body, condition = eqn.params["body_jaxpr"].jaxpr, eqn.params["cond_jaxpr"].jaxpr
        num_cond, num_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        carry = inputs[num_cond + num_body :]
        self.walk(condition, [*inputs[:num_cond], *carry], trips)
        results = self.walk(body, [*inputs[num_cond : num_cond + num_body], *carry], trips)
        return [
            self._pass("copy", value, var.aval, trips, {"repeats": before})
            for value, var, before in zip(results, eqn.outvars, carry, strict=True)
        ]


def heaviest(branches: Sequence[core.Jaxpr]) -> core.Jaxpr:
    """Returns the branch of a `lax.cond` that has the most arithmetic operations; the first of several such ones."""
    return max(branches, key=_operations)


def _operations(jaxpr: core.Jaxpr) -> float:
    """The operations of products, and one for each element of all other results."""
    return sum(map(_operations_of, jaxpr.eqns))


def _operations_of(equation: core.JaxprEqn) -> float:
    inner = list(core.jaxprs_in_params(equation.params))
    if equation.primitive.name == "cond":
        return max(map(_operations, inner))
    if inner:
        return sum(map(_operations, inner)) * float(equation.params.get("length", 1))
    flop = product_flop(equation.primitive.name, equation.params, equation.invars, equation.outvars)
    return sum(float(getattr(var.aval, "size", 1)) for var in equation.outvars) if flop is None else flop
