"""Attention by call: equations that run a fused kernel themselves, such as those of Pallas and of cuDNN."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, final

import jax
import jax.numpy as jnp

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers._jaxprs import primitives_in
from alpa_dejavu.layers.attention.kernel import SIDES, AttentionKernel

_WORDS = ("attention", "flash", "mha", "attn")
_NAMES = ("name", "name_and_src_info", "call_target_name", "target_name")
_PRIMITIVES = ("pallas_call", "custom_call", "ffi_call")


def call_of(equation: core.JaxprEqn, path: Sequence[str]) -> KernelCall | None:
    """Returns what an equation, in functions of such names, calls if that is a fused kernel of attention; else None."""
    name = equation.primitive.name
    if not (name in _PRIMITIVES or name.startswith(("dot_product_attention_", "te_fused_attn"))):
        return None
    own = (str(equation.params[key]) for key in _NAMES if key in equation.params)
    words = " ".join((name, *path, *own)).lower()
    if not any(word in words for word in _WORDS) or (name == "pallas_call" and not _multiplies(equation)):
        return None
    return KernelCall.of(equation)


def _multiplies(equation: core.JaxprEqn) -> bool:
    """Whether a kernel has products and exponentials: one beside attention, such as a norm, hasn't."""
    names = primitives_in(equation)
    return "dot_general" in names and not names.isdisjoint(("exp", "exp2"))


Array = tuple[tuple[int, ...], Any]
"""The shape and the type of an array."""


@final
@dataclasses.dataclass(frozen=True)
class KernelCall:
    """A call of a fused kernel of attention: its sizes, and what it takes and returns.

    Attributes:
        kernel: the sizes.
        order: the letters of the dimensions of queries: b (batch), t (tokens), h (heads), d.
        cotangent: the position of the output's cotangent among the operands; -1 in a forward pass.
        operands, results: the shapes and types of what it takes, queries, keys and values first, and of what it
            returns.
    """

    kernel: AttentionKernel
    order: str
    cotangent: int
    operands: tuple[Array, ...]
    results: tuple[Array, ...]

    @staticmethod
    def of(equation: core.JaxprEqn) -> KernelCall | None:
        """Returns the call that an equation is if its first operands are queries, keys and values; None if not."""
        operands, results = ([_array(atom) for atom in atoms] for atoms in (equation.invars, equation.outvars))
        shapes = [shape for shape, _ in operands]
        ranks = [len(shape) for shape in shapes[:3]]
        if not results or ranks not in ([3, 3, 3], [4, 4, 4]):
            return None
        queries, keys, values = shapes[:3]
        order = _order(equation, queries, keys)
        at = {letter: order.index(letter) for letter in order}
        if keys[:-1] != values[:-1] or queries[-1] != keys[-1] or queries[at["h"]] % max(keys[at["h"]], 1):
            return None
        output = (*queries[:-1], values[-1])
        cotangents = [n for n, shape in enumerate(shapes) if n > 2 and shape == output]
        num_large = sum(shape in (output, *shapes[:3]) for shape, _ in results)
        if cotangents:
            gradients = _GRADIENTS.get(num_large, ())
            cotangents = [n for n in cotangents if operands[n][1] == operands[2][1]] or cotangents
        if not (gradients if cotangents else results[0][0] == output):
            return None
        kernel = AttentionKernel(
            queries[at["b"]] if "b" in at else 1, queries[at["t"]], keys[at["t"]], queries[at["h"]], keys[at["h"]],
            queries[-1], values[-1], _is_causal(equation), gradients if cotangents else (),
        )  # fmt: skip
        return KernelCall(kernel, order, cotangents[-1] if cotangents else -1, tuple(operands), tuple(results))

    @property
    def body(self) -> core.Jaxpr:
        """Returns the jaxpr of the operations that the kernel stands for, on the same operands."""
        return _body(self)


_GRADIENTS = {1: ("queries",), 2: ("keys", "values"), 3: SIDES, 4: SIDES}
"""The gradients that a backward kernel returns, by the number of its large results: those for a TPU are two."""


def _array(atom: core.Atom) -> Array:
    return tuple(getattr(atom.aval, "shape", ())), getattr(atom.aval, "dtype", None)


@functools.lru_cache(maxsize=64)
def _body(call: KernelCall) -> core.Jaxpr:
    return jax.make_jaxpr(lambda *operands: _computed(call, *operands))(
        *(jax.ShapeDtypeStruct(*array) for array in call.operands)
    ).jaxpr


def _computed(call: KernelCall, *operands: Any) -> list[Any]:
    """The results of a kernel, operation by operation."""
    kernel, place = call.kernel, call.order.index("h")
    queries, keys = call.order.replace("h", "hg"), call.order.replace("t", "s")
    scores = "bhgts" if "b" in call.order else "hgts"

    def grouped(x: Any) -> Any:
        """Heads as those that share a head of keys."""
        return x.reshape(*x.shape[:place], kernel.key_heads, x.shape[place] // kernel.key_heads, *x.shape[place + 1 :])

    query, key, value = grouped(operands[0]), *operands[1:3]
    exponentials = jnp.exp(jnp.einsum(f"{queries},{keys}->{scores}", query, key))
    sums = exponentials.sum(-1, keepdims=True)
    weight = exponentials / sums
    if not kernel.gradients:
        large = iter([jnp.einsum(f"{scores},{keys}->{queries}", weight, value)])
    else:
        cotangent = grouped(operands[call.cotangent])
        slope = jnp.einsum(f"{queries},{keys}->{scores}", cotangent, value) * weight
        slope = slope - weight * slope.sum(-1, keepdims=True)
        products = {
            "queries": (f"{scores},{keys}->{queries}", slope, key),
            "keys": (f"{scores},{queries}->{keys}", slope, query),
            "values": (f"{scores},{queries}->{keys}", weight, cotangent),
        }
        large = iter([jnp.einsum(*products[side]) for side in kernel.gradients])
    wide = {math.prod(shape) for shape in (*kernel.input_shapes, *kernel.output_shapes)}
    results = []
    for shape, dtype in call.results:
        result = next(large, None) if math.prod(shape) in wide else None
        result = _rows(sums, shape, kernel) if result is None else result
        results.append(result.reshape(shape).astype(dtype))
    return results


def _rows(sums: Any, shape: Sequence[int], kernel: AttentionKernel) -> Any:
    """A number for each row, as a kernel returns them: (batch, heads, tokens), maybe repeated; zeros for all else."""
    num_rows = kernel.batch * kernel.heads * kernel.tokens
    repeated = math.prod(shape) // num_rows
    if repeated * num_rows != math.prod(shape):
        return jnp.zeros(shape)
    rows = sums.reshape(kernel.batch, kernel.heads, kernel.tokens, 1)
    return jnp.broadcast_to(rows, (*rows.shape[:-1], repeated))


def _order(equation: core.JaxprEqn, queries: Sequence[int], keys: Sequence[int]) -> str:
    """The dimensions of queries in order: cuDNN's layout, or by a kernel's blocks, of which a token is never one."""
    ahead = "b" if len(queries) == 4 else ""
    layout = equation.params.get("layout")
    if isinstance(layout, int):
        return ahead + ("htd" if layout else "thd")
    first = len(ahead)
    mapping = equation.params.get("grid_mapping")
    blocks = getattr(mapping, "block_mappings", None)
    block = blocks[0].block_shape if blocks else None
    if block is not None and len(block) == len(queries):
        many = [isinstance(size, int) and size > 1 for size in block[first : first + 2]]
        if many[0] != many[1]:
            return ahead + ("thd" if many[0] else "htd")
    if queries[first] != keys[first]:
        return ahead + ("thd" if queries[first + 1] % max(keys[first + 1], 1) == 0 else "htd")
    # There are more tokens than heads, most often.
    return ahead + ("thd" if queries[first] >= queries[first + 1] else "htd")


def _is_causal(equation: core.JaxprEqn) -> bool:
    """Whether a kernel masks by the order of tokens: cuDNN's is told so, and Pallas' compares two arrays of indices."""
    mask = str(equation.params.get("mask_type", "")).upper()
    return "CAUSAL" in mask or _compares(equation)


def _compares(equation: core.JaxprEqn) -> bool:
    """Whether an equation compares two matrices, or any nested in it does."""
    if equation.primitive.name in ("ge", "gt", "le", "lt"):
        return all(len(_array(atom)[0]) == 2 for atom in equation.invars)
    return any(_compares(inner) for jaxpr in core.jaxprs_in_params(equation.params) for inner in jaxpr.eqns)
