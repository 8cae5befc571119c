"""OptEx walks ahead on estimated gradients, has true ones of all points computed side by side, and applies them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, final

import jax
import jax.numpy as jnp
import optax

from alpa_dejavu._util import units
from alpa_dejavu._util.threads import machine_memory_bytes
from alpa_dejavu.problem import checks
from alpa_dejavu.training._scope import SCOPES
from alpa_dejavu.training.optex._history import (
    GradientLayout,
    appended,
    empty,
    layout_of,
    nearness,
    needed_bytes,
    products_among,
    products_with,
)
from alpa_dejavu.training.optex._posterior import Seen, fitted, of_each
from alpa_dejavu.training.optex._walk import OptExState, StepReport, Walk, judged, stays, walked
from alpa_dejavu.training.optex.evaluators import Evaluated, Evaluator
from alpa_dejavu.training.optex.kernels import Kernel
from alpa_dejavu.training.optex.kernels import kernel as chosen_kernel
from alpa_dejavu.training.optex.scales import Fixed, MedianDistance, Scale
from alpa_dejavu.training.optex.scales import scale as chosen_scale

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PyTree

    Valid: TypeAlias = Bool[Array, " N"]
    Stepped: TypeAlias = tuple[PyTree, OptExState, StepReport]

NOISES = (1e-4, 1e-2, 0.1, 0.3, 1.0, 3.0)
"""Levels of noise that are tried, over the variance of gradients."""
_MEMORY = 0.9
"""How much of the moving average of the replicas' variance stays from step to step."""


def optex(
    optimizer: optax.GradientTransformation, parallel: int = 4, history: int = 20, kernel: str | Kernel = "matern52",
    *, scale: str | float | Scale = "likelihood", **settings: Any,
) -> OptEx:  # fmt: skip
    """Returns an optimizer that takes up to so many steps for one, and has as many gradients computed side by side.

    Arguments are the attributes of `OptEx`; a kernel may be a name of `KERNELS`, a length scale a number, "median" or
    "likelihood".

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
    return OptEx(optimizer, parallel, history, chosen_kernel(kernel), chosen_scale(scale), **settings)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class OptEx:
    """An optimizer that takes several steps for one.

    A step begins at θ₀, the parameters. It fits a Gaussian process to the history's gradients G at T points X; walks
    ahead on its estimates μ of gradients, θₛ = update(θₛ₋₁, μ(θₛ₋₁)) for s < N; has the true gradients ∇f(θₛ) of all
    points computed side by side; applies them, and keeps them in the history. With one point it is the optimizer
    inside, to the bit.

    Attributes:
        parallel: how many points a step has at most, N.
        history: of how many points the gradients are kept, T.
        kernel: how alike the gradients of two points are.
        scale: chooses the length scale.
        noise: the variance of a gradient's noise over that of gradients; "replicas": by the evaluator's replicas;
            "fitted": chosen together with the length scale, of a few levels.
        trust: how large the error of an estimate that the kernel expects may be, over its length, to be walked on: 0
            never walks, infinity always.
        applied: which gradients are applied where a step began: "all" one after another; or "last", the last one where
            the walk had come to, as the paper has it. The optimizer's moments see all of them.
        scope: "whole": all parameters have one kernel; "stage": each layer or stage has its own; "leaf": each array.
        share: the share of coordinates by which distances and products are measured, of each leaf.
        dtype: in which gradients are kept, "float32" or "bfloat16"; points are in float32, so that near ones differ.
        refit: length scale and noise are chosen anew every so many steps.
        memory_bytes: what the history may take on each device; None: what the device has.
        in_place: whether `step` reuses the arrays of the state that it is given, to save a copy of the history.

    References:
        Shu et al., OptEx: Expediting First-Order Optimization with Approximately Parallelized Iterations, NeurIPS 2024.
    """

    optimizer: optax.GradientTransformation
    parallel: int
    history: int
    kernel: Kernel
    scale: Scale
    _: dataclasses.KW_ONLY
    noise: float | str = "fitted"
    trust: float = 4.0
    applied: str = "all"
    scope: str = "whole"
    stage_of: Callable[[str], str] | None = None
    share: float = 1.0
    dtype: str = "float32"
    refit: int = 1
    seed: int = 0
    memory_bytes: float | None = None
    in_place: bool = False

    def __post_init__(self) -> None:
        for name in ("parallel", "history", "refit"):
            checks.count("optex", name, getattr(self, name))
        choices = {"applied": ("all", "last"), "dtype": ("float32", "bfloat16"), "scope": SCOPES}
        for name, allowed in choices.items():
            checks.one_of("optex", name, getattr(self, name), allowed)
        if self.history < self.parallel:
            raise ValueError(f"history is {self.history}, but must be at least parallel, {self.parallel}; keep more "
                             "points")  # fmt: skip
        if not self.trust >= 0:
            raise ValueError(f"trust is {self.trust}, but must be at least 0; 0 never walks, infinity always")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}, but must be above 0 and at most 1; 0.01 is 1 %")
        if not isinstance(self.noise, str):
            checks.not_negative("optex", "noise", self.noise)
            return
        checks.one_of("optex", "noise", self.noise, ("replicas", "fitted"))
        if self.noise == "fitted" and isinstance(self.scale, (Fixed, MedianDistance)):
            raise ValueError(f'noise is "fitted", but must be a number or "replicas" with scale={self.scale}, which '
                             'compares nothing; give one, or scale="likelihood"')  # fmt: skip

    def history_bytes(self, params: PyTree) -> int:
        """Returns the bytes that the history takes on each device, of parameters or their shapes alone."""
        return 0 if self.parallel == 1 else needed_bytes(self._layout(params), params, self.history, self.dtype)

    def init(self, params: PyTree) -> OptExState:
        """Returns the state of the beginning; raises ValueError, before anything is allocated, where parameters aren't
        real numbers, or the history doesn't fit into memory.
        """
        layout = self._layout(params)
        history = None
        if self.parallel > 1:
            self._check_memory(params)
            history = empty(layout, params, self.history, self.dtype)
        # Each is an array of its own, as `in_place` gives each away.
        ones, counts = jnp.ones(len(layout.groups)), [jnp.zeros((), jnp.int32) for _ in range(3)]
        return OptExState(self.optimizer.init(params), history, ones, -ones, *counts)

    def step(self, params: PyTree, state: OptExState, evaluator: Evaluator, batches: PyTree = None) -> Stepped:
        """Returns the new parameters and state, and how the step went.

        It may be called inside of `jit`, if the evaluator may.

        Args:
            state: that of the last step, or by `init`; with `in_place` its arrays can't be used after.
            batches: a pytree with leaves [N, ...], a batch for each point; None: the loss needs none.

        Raises:
            ValueError: there are more or fewer batches than points.
        """
        for leaf in jax.tree.leaves(batches):
            if not leaf.shape or leaf.shape[0] != self.parallel:
                raise ValueError(f"batches has a leaf of shape {leaf.shape}, but must have {self.parallel} first; give "
                                 "a batch for each point")  # fmt: skip
        walk = self._asks(params, state)
        evaluated = evaluator.evaluate(walk.points, batches, walk.count)
        return self._tells(params, state, walk, evaluated)

    def ask(self, params: PyTree, state: OptExState) -> Walk:
        """Returns the points whose gradients the next step needs: fits the process to the history, and walks on it."""
        layout, history = self._layout(params), state.history
        if history is None:
            return stays(params, len(layout.groups))
        near = nearness(layout, history, jax.tree.leaves(params))
        seen = Seen(history.distances, history.products, near, jnp.broadcast_to(history.age >= 0, near.shape))
        scale, noise = self._refitted(state, seen)
        process = of_each(lambda *group: fitted(self.kernel, *group), seen, scale, noise)
        return walked(self.optimizer, self.kernel, layout, history, seen, process, noise, params, state.optimizer,
                      self.parallel, self.trust)  # fmt: skip

    def tell(self, params: PyTree, state: OptExState, walk: Walk, evaluated: Evaluated) -> Stepped:
        """Returns the new parameters and state, and how the step went, once the gradients of a walk are there."""
        layout = self._layout(params)
        gradients = jax.tree.leaves(evaluated.gradients)
        n, losses = self.parallel, jnp.asarray(evaluated.losses)
        asked = jnp.arange(n) < walk.count
        has_arrived = asked if evaluated.has_arrived is None else asked & jnp.asarray(evaluated.has_arrived)
        # The square of a length that isn't finite isn't, either; too long ones are taken for such.
        lengths = sum(jnp.sum(jnp.square(g), axis=tuple(range(1, g.ndim)), dtype=jnp.float32) for g in gradients)
        is_valid = has_arrived & jnp.isfinite(losses) & jnp.isfinite(lengths)
        kept = jnp.where(jnp.any(is_valid), n - jnp.argmax(is_valid[::-1]), 0)
        params, optimizer = self._applied(params, state.optimizer, walk, evaluated.gradients, is_valid, kept)
        dropped = jnp.sum(has_arrived & ~is_valid, dtype=jnp.int32)
        lost = jnp.sum(asked & ~has_arrived, dtype=jnp.int32)
        history, errors, cosines = state.history, jnp.full(n, jnp.nan), jnp.full(n, jnp.nan)
        if history is not None:
            products, among = products_with(layout, history, gradients), products_among(layout, gradients)
            errors, cosines = judged(history, walk, products, among, is_valid)
            history = appended(layout, history, jax.tree.leaves(walk.points), gradients, is_valid, walk.distances,
                               products, among)  # fmt: skip
        noise = walk.noise if self.noise != "replicas" else self._variance(state, evaluated.noise, is_valid, layout)
        after = OptExState(optimizer, history, walk.scale, noise, state.steps + 1, state.dropped + dropped,
                           state.lost + lost)  # fmt: skip
        losses = jnp.where(has_arrived, losses, jnp.nan)
        report = StepReport(losses[0], losses, walk.count, kept, dropped, lost, walk.expected, errors, cosines)
        return params, after, report

    def _applied(
        self, params: PyTree, moments: PyTree, walk: Walk, gradients: PyTree, is_valid: Valid, kept: Int[Array, ""]
    ) -> tuple[PyTree, PyTree]:
        """The parameters and the optimizer's state after the kept steps."""

        def apply_point(place: Int[Array, ""] | int, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
            at, gradient = (jax.tree.map(lambda x: x[place], tree) for tree in (walk.points, gradients))

            def valid() -> tuple[PyTree, PyTree]:
                point = at if self.applied == "last" else carry[0]
                updates, after = self.optimizer.update(gradient, carry[1], point)
                return optax.apply_updates(point, updates), after

            return jax.lax.cond(is_valid[place], valid, lambda: carry)

        if self.parallel == 1:
            return apply_point(0, (params, moments))
        return jax.lax.fori_loop(0, kept, apply_point, (params, moments))

    def _refitted(self, state: OptExState, seen: Seen) -> tuple[Float[Array, " groups"], Float[Array, " groups"]]:
        """The length scale and the level of noise of each group."""
        levels = self._levels(state, seen)

        def anew() -> tuple[Float[Array, " groups"], Float[Array, " groups"]]:
            return of_each(lambda group, noises: self.scale.choose(self.kernel, group, noises), seen, levels)

        if self.refit == 1:
            return anew()
        kept = levels[:, 0] if self.noise != "fitted" else jnp.maximum(state.noise, NOISES[0])
        return jax.lax.cond(state.steps % self.refit == 0, anew, lambda: (state.scale, kept))

    def _levels(self, state: OptExState, seen: Seen) -> Float[Array, "groups levels"]:
        """The levels of noise that each group chooses from."""
        groups = len(seen.reference)
        if self.noise == "fitted":
            return jnp.broadcast_to(jnp.asarray(NOISES), (groups, len(NOISES)))
        if self.noise == "replicas":
            count = jnp.maximum(jnp.sum(seen.is_known, axis=1), 1)
            whole = jnp.trace(seen.products, axis1=1, axis2=2) / count
            variance = jnp.maximum(state.noise, 0)
            # Of what all gradients have together some is noise; at least a thousandth isn't.
            return (variance / jnp.maximum(whole - variance, 1e-3 * whole + jnp.finfo(jnp.float32).tiny))[:, None]
        return jnp.full((groups, 1), self.noise, jnp.float32)

    def _variance(
        self, state: OptExState, noise: PyTree, is_valid: Valid, layout: GradientLayout
    ) -> Float[Array, " groups"]:
        """The moving average of the variance of each group's gradient by its replicas."""
        if noise is None:
            raise ValueError('noise is "replicas", but the evaluator tells none; give it replicas=2 or more')
        count = jnp.maximum(jnp.sum(is_valid), 1)
        by_leaf = [jnp.sum(jnp.where(is_valid, leaf, 0)) / count for leaf in jax.tree.leaves(noise)]
        now = jnp.stack([sum(variance for variance, of in zip(by_leaf, layout.group_of, strict=True) if of == group)
                         for group in range(len(layout.groups))])  # fmt: skip
        mixed = jnp.where(state.noise < 0, now, _MEMORY * state.noise + (1 - _MEMORY) * now)
        return jnp.where(jnp.any(is_valid), mixed, state.noise)

    def _check_memory(self, params: PyTree) -> None:
        limit = self.memory_bytes
        if limit is None:
            limit = float((jax.devices()[0].memory_stats() or {}).get("bytes_limit", machine_memory_bytes()))
        needed = self.history_bytes(params)
        if needed > limit:
            raise ValueError(
                f"history is {self.history} points, which take {units.size(needed)} on each device, but must take at "
                f'most {units.size(limit)}; take a shorter one, dtype="bfloat16" or a smaller share of coordinates'
            )

    def _layout(self, params: PyTree) -> GradientLayout:
        return layout_of(params, self.scope, self.stage_of, self.share, self.seed)

    @functools.cached_property
    def _asks(self) -> Callable[..., Walk]:
        return jax.jit(self.ask)

    @functools.cached_property
    def _tells(self) -> Callable[..., Stepped]:
        return jax.jit(self.tell, donate_argnums=(1,) if self.in_place else ())
