"""A monitor of what crosses between stages: who sends activations or signals that aren't like those of before.

    loss ─ watched(activations, slot) ─▶ the same activations
                 │ backward: the slot's gradient is what was seen, of activations and of the signal that came back
                 ▼
    slots' gradients [N, 2, K, F] ─▶ Monitor.seen ─▶ scores, who is wrong, moving values

Of each feature there are the mean, the mean square, and the shares of values below moving quantiles, which needs no
sorting; of all together there is the size. All is pure JAX, a part of the train step and of its state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu.problem import checks
from alpa_dejavu.training.robust._arrays import column

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PyTree

    from alpa_dejavu.training.robust._arrays import Gradients, Which

    Values: TypeAlias = Float[Array, "... F"]
    Slot: TypeAlias = Float[Array, "2 K F"]

__all__ = ["OTHERS", "SHARES", "Crossed", "Monitor", "Watch", "WithSlots", "tap"]

SHARES, OTHERS = slice(2, -1), 3
"""The statistics: the mean and the mean square, then the shares below quantiles, and at last the size."""
_ROWS = 64
_ROW_MOST = 2.0
"""How large a row may be, over the median row; one that is larger is scaled down."""


@jax.custom_vjp
def tap(values: Values, slot: Slot) -> Values:
    """Returns values; their statistics, and the signal's, are the gradient by the slot."""
    return values


def _forward(values: Values, slot: Slot) -> PyTree:
    return values, (_statistics(values, slot[0]), slot[1])


def _backward(kept: PyTree, signal: Values) -> tuple[Values, Slot]:
    of_values, slot = kept
    return signal, jnp.stack([of_values, _statistics(signal, slot)])


tap.defvjp(_forward, _backward)


def _statistics(values: Values, slot: Float[Array, "K F"]) -> Float[Array, "K F"]:
    """The K statistics of each of F features; the last one is the logarithm of a median row's size."""
    rows = values.reshape(-1, values.shape[-1])
    rows = rows[:: max(len(rows) // _ROWS, 1)].astype(jnp.float32)
    large = jnp.sqrt(jnp.mean(jnp.square(rows), axis=1, keepdims=True))
    # Rows of padding are zeros: they say nothing of the size.
    usual = jnp.nan_to_num(jnp.nanmedian(jnp.where(large > 0, large, jnp.nan)))
    rows = rows * jnp.minimum(1, _ROW_MOST * usual / jnp.where(large == 0, 1, large))
    below = jnp.mean(rows[:, None] < slot[None, SHARES], axis=0)
    return jnp.concatenate([jnp.mean(rows, axis=0)[None], jnp.mean(jnp.square(rows), axis=0)[None], below,
                            jnp.full((1, rows.shape[1]), jnp.log(usual + 1e-30))])  # fmt: skip


_MOST, _OF_WRONG = 10.0, 0.02
_LEAST_SPREADS = np.array([0.2, 0.1], np.float32)
"""The least spreads of the logarithms of patterns' deviations and of sizes."""
_NOT_FINITE = 100.0
"""The logarithm of a size that isn't finite."""


class Watch(NamedTuple):
    """The part of the train state that the monitor needs; a pytree, for checkpoints too.

    Attributes:
        slots: for each crossing what `watched` takes: activations and signals, whose first two rows and last row are
            unused, and the others the moving quantiles.
        mean, square: for each crossing the moving mean of each statistic, and of its squared deviation.
        score: for each crossing the moving mean of the logarithms of how far patterns are off and of sizes, pattern and
            size of activations and signals. It is what one or two replicas are compared with.
        spread: for each crossing the moving mean of these logarithms' squared deviations.
    """

    slots: dict[str, Slot]
    mean: dict[str, Slot]
    square: dict[str, Slot]
    score: dict[str, Float[Array, "2 2"]]
    spread: dict[str, Float[Array, "2 2"]]
    steps: Int[Array, ""]


class WithSlots(NamedTuple):
    """Parameters beside the slots of what is watched: what a watched loss takes, and is differentiated by.

    As fields of their own they are never judged, nor put together, as one layer.
    """

    params: PyTree
    slots: dict[str, Slot]


class Crossed(NamedTuple):
    """The monitor's judgement of a step: for each crossing whether each replica's activations and signals are wrong,
    and by how many standard deviations each is off.
    """

    wrong: dict[str, Bool[Array, "2 N"]]
    score: dict[str, Float[Array, "2 N"]]

    @property
    def replicas(self) -> Which:
        """Which replicas are wrong anywhere."""
        return jnp.any(jnp.concatenate(list(self.wrong.values())), axis=0)

    def stages(self, order: Sequence[str]) -> list[int | None]:
        """Returns for each replica the stage that computes wrongly, or None, by the crossings in the order of the
        stages, of which there is one more.

        It is the one before the first crossing whose activations are wrong; or, where only signals are, the one after
        the last crossing whose signal is wrong.
        """
        wrong = np.stack([np.asarray(self.wrong[name]) for name in order])
        forward, backward = wrong[:, 0], wrong[:, 1]
        return [int(np.flatnonzero(f)[0]) if f.any() else int(np.flatnonzero(b)[-1]) + 1 if b.any() else None
                for f, b in zip(forward.T, backward.T, strict=True)]  # fmt: skip


@final
@dataclasses.dataclass(frozen=True)
class Monitor:
    """Moving means and quantiles of each feature that crosses between stages, and who is far from them.

    A replica's activations, or signals, have a pattern and a size. The pattern is how far they are off: the root mean
    square of their statistics' deviations from the moving means, each over its moving deviation. The size is that of
    the median row; rows of more than twice this size are scaled down to it, as few tokens have signals many times as
    large as all others. The logarithms of both are compared with the median of the other replicas in the same step,
    or, of one or two replicas, with the moving mean. Wrong is whose pattern is farther off by `threshold` standard
    deviations (of at least 0.2), whose size is larger or smaller by as many (of at least 0.1), or who isn't finite;
    but nobody where more than half of at least three replicas are, as then it is training that changed. Wrong ones
    hardly move the moving values.

    Attributes:
        decay: how much of the moving values stays from step to step.
    """

    threshold: float = 5.0
    quantiles: tuple[float, ...] = (0.1, 0.5, 0.9)
    decay: float = 0.9
    warm_up: int = 20

    def __post_init__(self) -> None:
        checks.positive("monitor", "threshold", self.threshold)
        checks.count("monitor", "warm_up", self.warm_up)
        for name, values in (("quantiles", self.quantiles), ("decay", (self.decay,))):
            if not all(0 < value < 1 for value in values):
                raise ValueError(f"monitor: {name} is {getattr(self, name)}, but must be above 0 and below 1; give "
                                 "shares")  # fmt: skip

    def init(self, features: Mapping[str, int]) -> Watch:
        """Returns the state of the beginning, for the number of features of each crossing, by name."""
        if not features:
            raise ValueError("monitor: features is empty, but must have a crossing; name what is watched")

        def zeros() -> dict[str, Slot]:
            return {name: jnp.zeros((2, OTHERS + len(self.quantiles), size)) for name, size in features.items()}

        small = {name: jnp.zeros((2, 2)) for name in features}
        return Watch(zeros(), zeros(), zeros(), small, small, jnp.zeros((), jnp.int32))

    @staticmethod
    def watched(values: Values, slot: Slot) -> Values:
        """Returns values as they are; the gradient by their slot is what was seen of them.

        Values are activations where they leave a stage, of which at most 64 rows are looked at, evenly spread; the slot
        is one of `Watch.slots`.
        """
        if values.shape[-1] != slot.shape[-1]:
            raise ValueError(f"slot is for {slot.shape[-1]} features, but must be for {values.shape[-1]}; give init "
                             "the size of the last dimension")  # fmt: skip
        return tap(values, slot)

    def seen(self, watch: Watch, statistics: Mapping[str, Float[Array, "N 2 K F"]]) -> tuple[Watch, Crossed]:
        """Returns the next state, and the judgement of a step by the gradients by `Watch.slots`."""
        later = Watch({}, {}, {}, {}, {}, watch.steps + 1)
        judged = Crossed({}, {})
        for name, now in statistics.items():
            share = self._share(watch.steps)
            away = now - watch.mean[name]
            usual = jnp.maximum(watch.square[name], 1e-12 * (1e-12 + jnp.square(watch.mean[name])))
            squares = jnp.minimum(jnp.where(jnp.isfinite(away), jnp.square(away) / usual, jnp.inf), _MOST**2)
            logs = jnp.stack([0.5 * jnp.log(jnp.mean(squares[:, :, :-1], axis=(2, 3)) + 1e-12), now[:, :, -1, 0]])
            logs = jnp.where(jnp.isfinite(logs), logs, _NOT_FINITE)  # [2, N, 2]
            rated = logs - (_of_others(logs) if len(now) > 2 else watch.score[name][:, None])
            spread = jnp.maximum(jnp.sqrt(watch.spread[name]), _LEAST_SPREADS[:, None])[:, None]
            off = jnp.maximum(rated[0] / spread[0], jnp.abs(rated[1]) / spread[1])
            begun = watch.steps >= self.warm_up
            wrong = (off > self.threshold) & begun
            if len(now) > 2:
                wrong = wrong & (jnp.mean(wrong, axis=0) <= 0.5)
            wrong = wrong | ~jnp.all(jnp.isfinite(now), axis=(2, 3))
            shares = jnp.where(wrong, _OF_WRONG, 1.0) / len(now)
            weight = shares * share
            # What is far away moves them no more than three deviations would.
            away = jnp.where(begun, jnp.clip(away, -3 * jnp.sqrt(usual), 3 * jnp.sqrt(usual)), away)
            later.mean[name] = watch.mean[name] + _mean(weight, away)
            later.square[name] = watch.square[name] + _mean(weight, jnp.square(away) - watch.square[name])
            rated = jnp.where(begun, jnp.clip(rated, -3 * spread, 3 * spread), rated)
            # While deviations aren't known yet, patterns say nothing.
            since = watch.steps - self.warm_up // 2
            later.score[name] = watch.score[name] + self._share(since) * jnp.sum(shares * rated, axis=1)
            later.spread[name] = watch.spread[name] + self._share(since - 1) * jnp.sum(
                shares * (jnp.square(rated) - watch.spread[name][:, None]), axis=1)  # fmt: skip
            later.slots[name] = self._moved_quantiles(watch.slots[name], later, name, weight, now)
            judged.wrong[name], judged.score[name] = wrong.T, off.T
        return later, judged

    def dropped(self, gradients: Gradients, crossed: Crossed) -> Gradients:
        """Returns replicas' gradients with NaN for those that are wrong: rules have no part of them.

        Where all are, a rule's gradient is zeros, and the step is as good as dropped.
        """
        wrong = crossed.replicas
        return jax.tree.map(lambda x: jnp.where(column(wrong, x), jnp.nan, x), gradients)

    def _share(self, steps: Int[Array, ""]) -> Float[Array, ""]:
        """The weight of a step after so many others: in the beginning moving values are plain means."""
        return jnp.where(steps < 0, 0, jnp.maximum(1 - self.decay, 1 / (1 + jnp.maximum(steps, 0))))

    def _moved_quantiles(
        self, slot: Slot, later: Watch, name: str, weight: Float[Array, "N 2"], now: Float[Array, "N 2 K F"]
    ) -> Slot:
        """The slot with quantiles nearer to where their shares of values lie below."""
        shares = jnp.asarray(self.quantiles)[None, :, None]
        deviation = jnp.sqrt(jnp.maximum(later.mean[name][:, 1] - jnp.square(later.mean[name][:, 0]), 0))
        step = _mean(weight, shares - now[:, :, SHARES]) * deviation[:, None] * 2
        return slot.at[:, SHARES].add(step)


def _of_others(values: Float[Array, "2 N 2"]) -> Float[Array, "2 N 2"]:
    """The median of the other replicas' values, for each replica."""
    own = jnp.eye(values.shape[1], dtype=bool)[None, :, :, None]
    return jnp.nanmedian(jnp.where(own, jnp.nan, values[:, None]), axis=2)


def _mean(weight: Float[Array, "N 2"], values: Float[Array, "N 2 K F"]) -> Slot:
    """The sum over replicas of values by weights; what isn't finite counts as nothing."""
    return jnp.sum(weight[:, :, None, None] * jnp.where(jnp.isfinite(values), values, 0), axis=0)
