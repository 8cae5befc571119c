"""Steps side by side: walks ahead on estimated gradients, has the true ones of all points, and applies them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import optax

from alpa_dejavu._util import units
from alpa_dejavu._util.threads import machine_memory_bytes
from alpa_dejavu.training.optex._history import (
    GradientHistory,
    added,
    empty,
    is_known,
    nearness,
    needed_bytes,
    products_among,
    products_with,
)
from alpa_dejavu.training.optex._layout import GradientLayout, layout_of
from alpa_dejavu.training.optex._posterior import Seen, fitted, of_each
from alpa_dejavu.training.optex._walk import Walk, kept_steps, stays, walked
from alpa_dejavu.training.optex.evaluators import Evaluated, Evaluator
from alpa_dejavu.training.optex.kernels import Kernel
from alpa_dejavu.training.optex.scales import Scale

NOISES = (1e-4, 1e-2, 0.1, 0.3, 1.0, 3.0)
"""Levels of noise that are tried, over the variance of gradients."""
_MEMORY = 0.9
"""How much of the moving average of the replicas' variance stays from step to step."""


class OptExState(NamedTuple):
    """The state between steps; a pytree of arrays, for checkpoints too.

    Attributes:
        optimizer: the state of the optimizer inside.
        history: points and their gradients; None where one point is evaluated at a time.
        scale: the length scale of each group.
        noise: of each group: the variance of a gradient by its replicas, or the level that was fitted.
        steps: how many there were.
        dropped: how many gradients weren't finite.
        lost: how many points haven't arrived.
    """

    optimizer: Any
    history: GradientHistory | None
    scale: jax.Array
    noise: jax.Array
    steps: jax.Array
    dropped: jax.Array
    lost: jax.Array


class StepReport(NamedTuple):
    """How a step went.

    Attributes:
        loss: at the parameters where it began.
        losses: at all points, shape [N]; NaN where none was evaluated.
        walked: how many points were evaluated.
        kept: how many of them have a part in the new parameters, the dropped ones among them; 0: they are the old ones.
        dropped: how many gradients weren't finite.
        lost: how many points haven't arrived.
        expected: the error of the estimate at each point that the kernel expected, over the estimate's length, [N].
        errors: the error of the estimate at each point over the true gradient's length, shape [N]; NaN where there is
            none. On the picked coordinates, as `expected`.
        cosines: of the angle between both, shape [N].
    """

    loss: jax.Array
    losses: jax.Array
    walked: jax.Array
    kept: jax.Array
    dropped: jax.Array
    lost: jax.Array
    expected: jax.Array
    errors: jax.Array
    cosines: jax.Array


@final
@dataclasses.dataclass(frozen=True, eq=False)
class OptEx:
    """An optimizer that takes several steps for one, made by `optex`, whose arguments are its attributes."""

    optimizer: optax.GradientTransformation
    parallel: int
    history: int
    kernel: Kernel
    scale: Scale
    noise: float | str
    trust: float
    applied: str
    keep: str
    scope: str
    stage_of: Callable[[str], str] | None
    share: float
    coordinates: str
    dtype: str
    refit: int
    seed: int
    memory_bytes: float | None
    in_place: bool

    def history_bytes(self, params: Any) -> int:
        """Returns the bytes that the history takes on each device, of parameters or their shapes alone."""
        return 0 if self.parallel == 1 else needed_bytes(self._layout(params), params, self.history, self.dtype)

    def init(self, params: Any) -> OptExState:
        """Returns the state of the beginning.

        Raises:
            ValueError: the parameters aren't real numbers, or the history doesn't fit into memory; nothing was
                allocated then.
        """
        layout = self._layout(params)
        history = None
        if self.parallel > 1:
            self._check_memory(params)
            history = empty(layout, params, self.history, self.dtype)
        # Each is an array of its own, as `in_place` gives each away.
        ones, counts = jnp.ones(len(layout.groups)), [jnp.zeros((), jnp.int32) for _ in range(3)]
        return OptExState(self.optimizer.init(params), history, ones, -ones, *counts)

    def step(
        self, params: Any, state: OptExState, evaluator: Evaluator, batches: Any = None
    ) -> tuple[Any, OptExState, StepReport]:
        """Returns the new parameters and state, and how the step went.

        It may be called inside of `jit`, if the evaluator may.

        Args:
            params: the parameters.
            state: that of the last step, or by `init`; with `in_place` its arrays can't be used after.
            evaluator: computes the true gradients.
            batches: a pytree with leaves [N, ...], a batch for each point; None: the loss needs none.

        Raises:
            ValueError: there are more or fewer batches than points.
        """
        for leaf in jax.tree_util.tree_leaves(batches):
            if not leaf.shape or leaf.shape[0] != self.parallel:
                raise ValueError(f"batches has a leaf of shape {leaf.shape}, but must have {self.parallel} first; give "
                                 "a batch for each point")  # fmt: skip
        walk = self._asks(params, state)
        evaluated = evaluator.evaluate(walk.points, batches, walk.count)
        return self._tells(params, state, walk, evaluated)

    def ask(self, params: Any, state: OptExState) -> Walk:
        """Returns the points whose gradients the next step needs."""
        layout, history = self._layout(params), state.history
        if history is None:
            return stays(params, len(layout.groups))
        is_filled = is_known(history)
        near = nearness(layout, history, jax.tree_util.tree_leaves(params))
        many = jnp.broadcast_to(is_filled, near.shape)
        seen = Seen(history.distances, history.products, near, many)
        scale, noise = self._refitted(state, seen, history)
        process = of_each(lambda *one: fitted(self.kernel, *one), seen, scale, noise)
        return walked(self.optimizer, self.kernel, layout, history, seen, process, noise, params, state.optimizer,
                      self.parallel, self.trust)  # fmt: skip

    def tell(
        self, params: Any, state: OptExState, walk: Walk, evaluated: Evaluated
    ) -> tuple[Any, OptExState, StepReport]:
        """Returns the new parameters and state, and how the step went, once the gradients of a walk are there."""
        layout = self._layout(params)
        gradients = jax.tree_util.tree_leaves(evaluated.gradients)
        n, losses = self.parallel, jnp.asarray(evaluated.losses)
        asked = jnp.arange(n) < walk.count
        has_arrived = asked if evaluated.has_arrived is None else asked & jnp.asarray(evaluated.has_arrived)
        # The square of a length that isn't finite isn't, either; too long ones are taken for such.
        lengths = sum(jnp.sum(jnp.square(g), axis=tuple(range(1, g.ndim)), dtype=jnp.float32) for g in gradients)
        is_valid = has_arrived & jnp.isfinite(losses) & jnp.isfinite(lengths)
        kept = kept_steps(self.keep, is_valid, losses, self._descents(walk, gradients))
        params, optimizer = self._applied(params, state.optimizer, walk, evaluated.gradients, is_valid, kept)
        dropped = jnp.sum(has_arrived & ~is_valid, dtype=jnp.int32)
        lost = jnp.sum(asked & ~has_arrived, dtype=jnp.int32)
        history, errors, cosines = state.history, jnp.full(n, jnp.nan), jnp.full(n, jnp.nan)
        if history is not None:
            products, among = products_with(layout, history, gradients), products_among(layout, gradients)
            errors, cosines = _judged(history, walk, products, among, is_valid)
            history = added(layout, history, jax.tree_util.tree_leaves(walk.points), gradients, is_valid,
                            walk.distances, products, among)  # fmt: skip
        after = OptExState(
            optimizer, history, walk.scale, self._noise_after(state, walk, evaluated.noise, is_valid, layout),
            state.steps + 1, state.dropped + dropped, state.lost + lost,
        )  # fmt: skip
        losses = jnp.where(has_arrived, losses, jnp.nan)
        return params, after, StepReport(losses[0], losses, walk.count, kept, dropped, lost, walk.expected, errors,
                                         cosines)  # fmt: skip

    def _applied(self, params: Any, moments: Any, walk: Walk, gradients: Any, is_valid: jax.Array, kept: Any) -> Any:
        """The parameters and the optimizer's state after the kept steps."""

        def one(place: Any, carry: Any) -> Any:
            at, gradient = (jax.tree_util.tree_map(lambda x: x[place], tree) for tree in (walk.points, gradients))

            def valid() -> Any:
                point = at if self.applied == "last" else carry[0]
                updates, after = self.optimizer.update(gradient, carry[1], point)
                return optax.apply_updates(point, updates), after

            return jax.lax.cond(is_valid[place], valid, lambda: carry)

        if self.parallel == 1:
            return one(0, (params, moments))
        return jax.lax.fori_loop(0, kept, one, (params, moments))

    def _descents(self, walk: Walk, gradients: Any) -> Any:
        none = jnp.zeros(self.parallel)
        if self.keep != "line":
            return none
        points = jax.tree_util.tree_leaves(walk.points)
        return jnp.stack([sum(jnp.vdot(g[0], p[i] - p[0]) for g, p in zip(gradients, points, strict=True))
                          for i in range(self.parallel)])  # fmt: skip

    def _refitted(self, state: OptExState, seen: Seen, history: GradientHistory) -> tuple[Any, Any]:
        """The length scale and the level of noise of each group."""
        count = jnp.sum(is_known(history))
        newest = jnp.clip(count // 2, 1, self.parallel)
        is_newest = history.age >= history.count - newest
        levels = self._levels(state, seen)

        def anew() -> Any:
            return of_each(lambda one, noises: self.scale.choose(self.kernel, one, noises, is_newest), seen, levels)

        kept = levels[:, 0] if self.noise != "fitted" else jnp.maximum(state.noise, NOISES[0])
        if self.refit == 1:
            return anew()
        return jax.lax.cond(state.steps % self.refit == 0, anew, lambda: (state.scale, kept))

    def _levels(self, state: OptExState, seen: Seen) -> Any:
        """The levels of noise that each group chooses from, shape [groups, levels]."""
        groups = len(seen.reference)
        if self.noise == "fitted":
            return jnp.broadcast_to(jnp.asarray(NOISES), (groups, len(NOISES)))
        if self.noise == "replicas":
            is_filled = jnp.maximum(jnp.sum(seen.is_known, axis=1), 1)
            whole = jnp.trace(seen.products, axis1=1, axis2=2) / is_filled
            variance = jnp.maximum(state.noise, 0)
            # Of what all gradients have together some is noise; at least a thousandth isn't.
            return (variance / jnp.maximum(whole - variance, 1e-3 * whole + jnp.finfo(jnp.float32).tiny))[:, None]
        return jnp.full((groups, 1), self.noise, jnp.float32)

    def _noise_after(
        self, state: OptExState, walk: Walk, noise: Any, is_valid: jax.Array, layout: GradientLayout
    ) -> Any:
        if self.noise != "replicas":
            return walk.noise
        if noise is None:
            raise ValueError('noise is "replicas", but the evaluator tells none; give it replicas=2 or more')
        count = jnp.maximum(jnp.sum(is_valid), 1)
        each = [jnp.sum(jnp.where(is_valid, one, 0)) / count for one in jax.tree_util.tree_leaves(noise)]
        now = jnp.stack([sum(one for one, of in zip(each, layout.group_of, strict=True) if of == group)
                         for group in range(len(layout.groups))])  # fmt: skip
        mixed = jnp.where(state.noise < 0, now, _MEMORY * state.noise + (1 - _MEMORY) * now)
        return jnp.where(jnp.any(is_valid), mixed, state.noise)

    def _check_memory(self, params: Any) -> None:
        limit = self.memory_bytes
        if limit is None:
            told = jax.devices()[0].memory_stats() or {}
            limit = float(told.get("bytes_limit", machine_memory_bytes()))
        needed = self.history_bytes(params)
        if needed > limit:
            raise ValueError(
                f"history is {self.history} points, which take {units.size(needed)} on each device, but must take at "
                f'most {units.size(limit)}; take a shorter one, dtype="bfloat16" or a smaller share of coordinates'
            )

    def _layout(self, params: Any) -> GradientLayout:
        return layout_of(params, self.scope, self.stage_of, self.share, self.coordinates, self.seed)

    @functools.cached_property
    def _asks(self) -> Callable[..., Any]:
        return jax.jit(self.ask)

    @functools.cached_property
    def _tells(self) -> Callable[..., Any]:
        return jax.jit(self.tell, donate_argnums=(1,) if self.in_place else ())


def _judged(
    history: GradientHistory, walk: Walk, products: jax.Array, among: jax.Array, is_valid: jax.Array
) -> tuple[Any, Any]:
    """The errors and cosines of a walk's estimates, by products of gradients alone, shape [N] each."""
    lengths = jnp.sum(jnp.diagonal(among, axis1=1, axis2=2), axis=0)
    told = jnp.einsum("gnt,gnt->n", walk.weights, products)
    own = jnp.einsum("gni,gij,gnj->n", walk.weights, history.products, walk.weights)
    is_there = is_valid & jnp.isfinite(walk.expected)
    errors = jnp.sqrt(jnp.maximum(own - 2 * told + lengths, 0) / lengths)
    cosines = told / jnp.sqrt(own * lengths)
    return jnp.where(is_there, errors, jnp.nan), jnp.where(is_there, cosines, jnp.nan)
