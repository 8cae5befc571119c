"""The programs that `calibrate` runs on a device: single operators, and whole forward and backward passes.

What the planner prices are stages, so most programs are parts of models with their gradients. Single operators are
there because in them one figure of the device stands alone.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from alpa_dejavu.calibration._programs import PROGRAMS
from alpa_dejavu.costs.latency import AnalyticLatency
from alpa_dejavu.problem import Device, Operators

__all__ = ["PROGRAMS", "SINGLE", "Program", "joined", "operators", "programs", "stage_programs"]

_LONGEST_S = 0.1
"""Longer programs teach no more than shorter ones, and cost more of the budget."""
_LARGEST = 1 / 400
"""The share of a device's memory that an array may take: stages have smaller tensors, and a CPU's system hands out
large ones page by page."""
_HALF = ("float16", "bfloat16")


@final
@dataclasses.dataclass(frozen=True, order=True)
class Program:
    """A probe program that runs on a device to measure it, such as a matrix product or a transformer block.

    Attributes:
        name: the kind of program, one of `PROGRAMS`.
        sizes: the sizes of its arrays; what they mean depends on the name.
        phase: "forward", or "gradient" for forward and backward, each compiled by itself.
        dtype: the dtype of its arrays.
    """

    name: str
    sizes: tuple[int, ...]
    phase: str = "forward"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.name not in PROGRAMS:
            raise ValueError(f"there is no program {self.name!r}; known are {', '.join(PROGRAMS)}")
        known = self.phase in ("forward", "gradient") and self.dtype in ("float32", *_HALF)
        wanted = len(inspect.signature(PROGRAMS[self.name]).parameters)
        if not known or len(self.sizes) != wanted or min(self.sizes) < 1:
            raise ValueError(
                f"program {self.name}: phase {self.phase!r}, dtype {self.dtype!r} and sizes {self.sizes}; measure anew"
            )

    def __str__(self) -> str:
        return f"{self.name} {'x'.join(map(str, self.sizes))} {self.phase} {self.dtype}"

    def passes(self) -> list[Pass]:
        """Returns the computations of the program that run one after another: the forward pass and, of "gradient", the
        backward pass.
        """
        import jax

        forward, weights, data = PROGRAMS[self.name](*self.sizes)
        dtype = np.dtype(jax.numpy.dtype(self.dtype))
        given = jax.tree_util.tree_map(lambda one: _in(one, dtype), (weights, data))
        return (both_passes if self.phase == "gradient" else forward_pass)(forward, *given)


def programs(device: Device) -> list[Program]:
    """Returns the probe programs by which a device's figures are measured, without those too long or large for it."""
    dtypes = ["float32", *(dtype for dtype in _HALF if dtype in device.flop_per_s)]
    listed = [
        Program(name, sizes, phase, dtype)
        for name, (phases, all_sizes) in _SIZES.items()
        for dtype in (dtypes if name in _MATRIX else dtypes[:1])
        for phase in phases
        for sizes in all_sizes
    ]
    return [
        program
        for program in listed
        if AnalyticLatency().predict(operators(program), device).total_s <= _LONGEST_S
        and _largest_bytes(operators(program)) <= _LARGEST * device.memory_bytes
    ]


def stage_programs(device: Device) -> list[Program]:
    """Returns the programs that stages of pipelines are made of, by which a device's fitted figures are judged: of each
    part of a model the longest one with its gradients.
    """
    longest: dict[str, tuple[float, Program]] = {}
    for program in programs(device):
        if program.phase == "gradient" and program.dtype == "float32":
            seconds = AnalyticLatency().predict(operators(program), device).total_s
            longest[program.name] = max(longest.get(program.name, (0.0, program)), (seconds, program))
    return [program for _, program in longest.values()]


def _largest_bytes(of: Operators) -> float:
    """Returns the bytes of the largest output, as if all were in single precision."""
    return 4.0 * max(math.prod(shape) for record in of.records for shape in record.output_shapes)


@functools.cache
def operators(program: Program) -> Operators:
    """Returns the features (operations, bytes ...) of a probe program's operators, which are known without running
    it.
    """
    return Operators.of([record for one in program.passes() for record in one.operators.records])


def joined(parts: list[Operators]) -> tuple[Operators, np.ndarray[Any, np.dtype[np.intp]]]:
    """Returns the operators of several programs in one `Operators`, and the index where those of each program begin."""
    return Operators.joined(parts), np.cumsum([0, *(len(part.records) for part in parts[:-1])])


def _in(value: Any, dtype: Any) -> Any:
    """Returns the abstract array, in this dtype if it is of floats."""
    import jax

    return jax.ShapeDtypeStruct(value.shape, dtype) if value.dtype == np.float32 else value


SINGLE = ("add", "tanh", "softmax", "transpose", "product", "batched")
"""Programs of one operator: what they take says less of a stage than a part of a model does."""
_MATRIX = ("product", "perceptron", "block")
_ONE, _BOTH = ("forward",), ("forward", "gradient")
_SIZES: Mapping[str, tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]] = {
    "add": (_ONE, ((8,), (1 << 16,), (1 << 20,), (1 << 23,), (1 << 26,))),
    "tanh": (_ONE, ((1 << 12,), (1 << 16,), (1 << 20,), (1 << 24,))),
    "softmax": (_ONE, ((256, 64), (2048, 256), (16384, 1024))),
    "transpose": (_ONE, ((256, 256), (2048, 1024), (8192, 4096))),
    "product": (
        _ONE,
        ((64, 64, 64), (128, 128, 128), (256, 512, 256), (64, 512, 512), (1024,) * 3, (4096,) * 3, (8192,) * 3),
    ),
    "batched": (_ONE, ((16, 64, 32), (128, 64, 32), (64, 256, 64), (512, 512, 64))),
    "perceptron": (
        _BOTH,
        ((32, 128, 2), (64, 256, 2), (64, 512, 2), (256, 512, 2), (512, 512, 2), (128, 1024, 2), (2048, 4096, 2)),
    ),
    "block": (
        _BOTH,
        (
            *((batch, 64, 128) for batch in (1, 8, 16)),
            *((16, 32, 128), (8, 48, 96), (2, 256, 64), (4, 128, 256), (8, 1024, 2048)),
        ),
    ),
    "convolution": (_BOTH, ((8, 16, 32, 64), (16, 32, 16, 32), (8, 64, 16, 32), (16, 8, 64, 96), (32, 56, 128, 256))),
    "head": (_BOTH, ((512, 128, 256), (256, 96, 512), (256, 128, 4096), (4096, 1024, 32768))),
    "momentum": (_ONE, ((1 << 12,), (1 << 16,), (1 << 20,), (1 << 24,))),
    "adam": (_ONE, ((1 << 16,), (1 << 20,), (1 << 24,))),
}


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Pass:
    """A computation that is compiled by itself, such as a forward or a backward pass: a function and its abstract
    arguments.

    Attributes:
        function: a function that takes `arguments` by position and returns a flat list of arrays.
        arguments: the arguments' shapes and dtypes (abstract values).
        recalled_from: the place of the first array that a forward pass kept for this one, as it did all later ones;
            None: it kept none.
        kept_from: the place of the first result that this one keeps for a backward pass, as it does all later ones.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    recalled_from: int | None = None
    kept_from: int | None = None

    @functools.cached_property
    def operators(self) -> Operators:
        """Returns the features (operations, bytes ...) of the operators of the computation, which are known without
        running it.
        """
        import jax

        from alpa_dejavu.layers.features import layer_features
        from alpa_dejavu.layers.features.structure import variables

        jaxpr = jax.make_jaxpr(self.function)(*self.arguments).jaxpr
        recalled = [] if self.recalled_from is None else jaxpr.invars[self.recalled_from :]
        kept = [] if self.kept_from is None else variables(jaxpr.outvars[self.kept_from :])
        return layer_features(jaxpr, recalled=recalled, kept=kept).operators

    def compiled(self) -> Callable[[], object]:
        """Compiles the computation for jax's default device; returns a function that runs it once, to its end, on
        made-up numbers.
        """
        import jax

        from alpa_dejavu.layers import concrete

        given = jax.device_put(concrete(self.arguments))
        program = jax.jit(self.function).lower(*given).compile()
        return lambda: jax.block_until_ready(program(*given))


def forward_pass(function: Callable[..., Any], weights: Any, data: Any) -> list[Pass]:
    """Returns a list of one computation to compile: the forward pass of a function of weights and data, for abstract
    arrays of both.
    """
    import jax

    return [Pass(lambda *given: jax.tree_util.tree_leaves(function(*given)), (weights, data))]


def both_passes(function: Callable[..., Any], weights: Any, data: Any) -> list[Pass]:
    """Returns two computations to compile: the forward pass of a function, which also returns what the backward pass
    needs, and the backward pass.

    Args:
        function: a function of weights and data.
        weights: a tree of abstract arrays; those of floats get gradients.
        data: a tree of abstract arrays; those of floats get gradients, too.
    """
    import jax

    given, tree = jax.tree_util.tree_flatten((weights, data))
    trained = [n for n, leaf in enumerate(given) if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)]

    def pulled(*leaves: Any) -> Any:
        def of_trained(values: Sequence[Any]) -> Any:
            whole = list(leaves)
            for n, value in zip(trained, values, strict=True):
                whole[n] = value
            return function(*jax.tree_util.tree_unflatten(tree, whole))

        return jax.vjp(of_trained, [leaves[n] for n in trained])

    made, pull = jax.eval_shape(pulled, *given)
    kept, pull_tree = jax.tree_util.tree_flatten(pull)
    number = len(jax.tree_util.tree_leaves(made))
    ahead = Pass(lambda *leaves: jax.tree_util.tree_leaves(pulled(*leaves)), tuple(given), kept_from=number)
    back = Pass(
        lambda cotangent, *leaves: jax.tree_util.tree_leaves(
            jax.tree_util.tree_unflatten(pull_tree, leaves)(cotangent)
        ),
        (made, *kept),
        recalled_from=number,
    )
    return [ahead, back]
