"""The settings of OptEx: how steps side by side are asked for."""

from __future__ import annotations

from collections.abc import Callable

import optax

from alpa_dejavu.problem import checks
from alpa_dejavu.training._scope import SCOPES
from alpa_dejavu.training.optex._layout import COORDINATES
from alpa_dejavu.training.optex._side_by_side import OptEx
from alpa_dejavu.training.optex._walk import KEEP
from alpa_dejavu.training.optex.kernels import Kernel
from alpa_dejavu.training.optex.kernels import kernel as chosen_kernel
from alpa_dejavu.training.optex.scales import Fixed, Median, Scale
from alpa_dejavu.training.optex.scales import scale as chosen_scale

_DTYPES = ("float32", "bfloat16")
_APPLIED = ("all", "last")


def optex(
    optimizer: optax.GradientTransformation, parallel: int = 4, history: int = 20, kernel: str | Kernel = "matern52",
    *, scale: str | float | Scale = "likelihood", noise: float | str = "fitted", trust: float = 4.0,
    applied: str = "all", keep: str = "last", scope: str = "whole", stage_of: Callable[[str], str] | None = None,
    share: float = 1.0, coordinates: str = "random", dtype: str = "float32", refit: int = 1, seed: int = 0,
    memory_bytes: float | None = None, in_place: bool = False,
) -> OptEx:  # fmt: skip
    """Returns an optimizer that takes up to so many steps for one, and has as many gradients computed side by side.

    A step walks ahead on gradients that a Gaussian process estimates from the history, has the true gradients of all
    points of the walk, and applies them. With one point it is the optimizer inside, to the bit.

    Args:
        optimizer: any optax optimizer.
        parallel: how many points a step has at most, N.
        history: of how many points the gradients are kept, T.
        kernel: the kernel, or its name: one of `KERNELS`.
        scale: the length scale: a number, a `Scale`, or the name of one: "median", "likelihood", "held-out".
        noise: the variance of a gradient's noise over that of gradients; "replicas": by the evaluator's replicas;
            "fitted": chosen together with the length scale, of a few levels.
        trust: how large the error of an estimate that the kernel expects may be, over its length, to be walked on: 0
            never walks, infinity always.
        applied: which gradients are applied where a step began: "all" one after another; or "last", the last one where
            the walk had come to, as the paper has it. The optimizer's moments see all of them.
        keep: how much of a walk is kept: "last", all; "lowest", up to the point of the lowest loss; "line", up to the
            last point that is low enough by Armijo's rule.
        scope: "whole": all parameters have one kernel; "stage": each layer or stage has its own; "leaf": each array.
        stage_of: the stage of a parameter by its path; None: its layer.
        share: the share of coordinates by which distances and products are measured, of each leaf.
        coordinates: "random": by chance; "strided": evenly spaced ones.
        dtype: in which gradients are kept, "float32" or "bfloat16"; points are in float32, so that near ones differ.
        refit: length scale and noise are chosen anew every so many steps.
        seed: of the choice of coordinates.
        memory_bytes: what the history may take on each device; None: what the device has.
        in_place: whether `step` reuses the arrays of the state that it is given, to save a copy of the history.

    Raises:
        ValueError: a value isn't one of those.

    References:
        Shu et al., OptEx: Expediting First-Order Optimization with Approximately Parallelized Iterations, NeurIPS 2024.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from alpa_dejavu.training.optex.evaluators import Vmapped
        >>> side_by_side = optex(optax.sgd(0.1), parallel=3, kernel="dot-product", noise=0.0, scale="median")
        >>> params = {"w": jnp.array([4.0, 2.0])}
        >>> state, gradients = side_by_side.init(params), Vmapped(lambda p, _: jnp.sum(p["w"] ** 2) / 2)
        >>> for _ in range(3):
        ...     params, state, report = side_by_side.step(params, state, gradients)
        >>> int(report.walked), [round(w, 2) for w in params["w"].tolist()]
        (3, [1.91, 0.95])
    """
    length = chosen_scale(scale)
    for name, count in (("parallel", parallel), ("history", history), ("refit", refit)):
        checks.count("optex", name, count)
    for name, text, known in (("applied", applied, _APPLIED), ("keep", keep, tuple(KEEP)), ("dtype", dtype, _DTYPES),
                              ("coordinates", coordinates, COORDINATES), ("scope", scope, SCOPES)):  # fmt: skip
        checks.one_of("optex", name, text, known)
    _check_numbers(parallel, history, trust, share)
    _check_noise(noise, length)
    return OptEx(optimizer, parallel, history, chosen_kernel(kernel), length, noise, trust, applied, keep, scope,
                 stage_of, share, coordinates, dtype, refit, seed, memory_bytes, in_place)  # fmt: skip


def _check_numbers(parallel: int, history: int, trust: float, share: float) -> None:
    if history < parallel:
        raise ValueError(f"history is {history}, but must be at least parallel, {parallel}; keep more points")
    if not trust >= 0:
        raise ValueError(f"trust is {trust}, but must be at least 0; 0 never walks, infinity always")
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}, but must be above 0 and at most 1; 0.01 is 1 %")


def _check_noise(noise: float | str, scale: Scale) -> None:
    if not isinstance(noise, str):
        checks.not_negative("optex", "noise", noise)
        return
    checks.one_of("optex", "noise", noise, ("replicas", "fitted"))
    if noise == "fitted" and isinstance(scale, (Fixed, Median)):
        raise ValueError(f'noise is "fitted", but must be a number or "replicas" with scale={scale}, which compares '
                         'nothing; give one, or scale="likelihood"')  # fmt: skip
