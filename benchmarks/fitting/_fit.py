"""Fits a physical model with deviations to measurements that have outliers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.normal import REACH_90
from fitting._fitted import Fitted, linearised, of_source, sources, with_jitter
from fitting._physics import Array, Physics, Rows

_FREEDOM = 4.0
"""Degrees of freedom of Student's t, which the noise is taken to be drawn from."""
_NUM_STEPS = 60
_SMALL, _MOST_DAMPING = 5e-4, 1e8
_INSIDE = 0.9
_WIDENINGS = (0.6, 4.0)


def fit(
    physics: Physics, rows: Rows, measured: Array, groups: Sequence[object] | None = None, *, floor: float = 0.01
) -> Fitted:
    """Fits a physical model to measurements: returns the most probable parameters and deviations, found by
    Levenberg-Marquardt steps on robustly weighted residuals.

    Args:
        physics: the physical model.
        rows: the columns that it takes. A column "source" tells measurements apart that have noise of their own.
        measured: the measured seconds or bytes of each row, shape (N,).
        groups: the group of each row; the spread is widened or narrowed until it holds 90 % of the rows of groups that
            are left out (by one step from the fit of all, without a fit for each). None: the spread stays as it is.
        floor: the least noise (standard deviation of a logarithm) that is believed.

    Raises:
        ValueError: something measured isn't a positive number, or nothing was.

    References:
        Lange, Little and Taylor, Robust Statistical Modeling Using the t Distribution, JASA 84(408), 1989.
    """
    if not len(measured) or not (np.isfinite(measured) & (measured > 0)).all():
        raise ValueError("fit: what was measured must be one or more positive numbers; leave the other rows out")
    goal, origin = np.log(measured), sources(rows, len(measured))
    programs, members = [], []
    for kind in physics.deviations:
        known, member = np.unique(kind.programs(rows), axis=0, return_inverse=True)
        programs.append(known)
        members.append(np.eye(len(known))[member.ravel()])
    precision, centre = _prior(physics, programs)
    state = _linear(physics, centre, members, rows, goal)
    for robust in (False, True):
        state = _ascend(
            state, lambda at: _linear(physics, at, members, rows, goal), precision, centre, origin, floor, robust
        )
    noise = _noise(state.residual, origin, floor)
    spread = of_source(noise, origin)
    trust = _trust(state.residual, spread)
    covariance = np.linalg.inv(state.jacobian.T @ (trust[:, None] * state.jacobian) + precision)
    widening = dict.fromkeys(noise, 1.0)
    if groups is not None and len(set(groups)) > 1:
        scores = _left_out(state, trust, covariance, spread, np.asarray([str(group) for group in groups]))
        widening = {each: _widening(scores[origin == each]) for each in noise}
    num_groups = len(goal) if groups is None else len(set(groups))
    return Fitted(physics, state.estimate, covariance, tuple(programs), noise, widening, len(goal), num_groups)


@dataclasses.dataclass(frozen=True, eq=False)
class _State:
    """An estimate, what it leaves of the measurements, and the prediction's derivative there."""

    estimate: Array
    residual: Array
    jacobian: Array


def _linear(physics: Physics, estimate: Array, members: Sequence[Array], rows: Rows, goal: Array) -> _State:
    mean, jacobian, _ = linearised(physics, estimate, members, rows)
    return _State(estimate, goal - mean, jacobian)


def _ascend(
    state: _State,
    linear: Callable[[Array], _State],
    precision: Array,
    centre: Array,
    origin: Array,
    floor: float,
    robust: bool,
) -> _State:
    """Levenberg-Marquardt steps until they are small.

    The first ascent takes little noise and no outliers for granted: else a fit far from the measurements takes them
    all for noise, and stays where the prior is.
    """
    damping = 1e-3
    for _ in range(_NUM_STEPS):
        if robust:
            spread = of_source(_noise(state.residual, origin, floor), origin)
            trust = _trust(state.residual, spread)
        else:
            spread = np.full(len(origin), 2 * floor)
            trust = spread**-2
        gradient = state.jacobian.T @ (trust * state.residual) - precision @ (state.estimate - centre)
        hessian = state.jacobian.T @ (trust[:, None] * state.jacobian) + precision
        step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), gradient)
        trial = linear(state.estimate + np.clip(step, -1.0, 1.0))
        gained = _cost(state, spread, precision, centre, robust) - _cost(trial, spread, precision, centre, robust)
        if gained >= 0:
            small = gained < _SMALL * len(origin)
            state, damping = trial, max(damping / 5, 1e-9)
            if small:
                break
        else:
            damping *= 10
            if damping > _MOST_DAMPING:
                break
    return state


def _noise(residual: Array, origin: Array, floor: float) -> dict[float, float]:
    """Returns the noise of each source, from the median of what is left: few outliers don't move it."""
    return {
        float(each): max(floor, 1.4826 * float(np.median(np.abs(residual[origin == each]))))
        for each in np.unique(origin)
    }


def _trust(residual: Array, spread: Array) -> Array:
    """The weight of each row in a least-squares step: an outlier has little."""
    return (_FREEDOM + 1) / (_FREEDOM + (residual / spread) ** 2) / spread**2


def _cost(state: _State, spread: Array, precision: Array, centre: Array, robust: bool) -> float:
    """Minus the logarithm of the posterior, up to a constant."""
    squares = (state.residual / spread) ** 2
    misfit = 0.5 * ((_FREEDOM + 1) * np.log1p(squares / _FREEDOM) if robust else squares).sum()
    away = state.estimate - centre
    total = float(misfit + 0.5 * away @ precision @ away)
    return total if np.isfinite(total) else np.inf


def _prior(physics: Physics, programs: Sequence[Array]) -> tuple[Array, Array]:
    """Precision and centre of parameters and deviations before any measurement."""
    blocks = [np.diag([parameter.spread**-2 for parameter in physics.parameters])]
    for kind, known in zip(physics.deviations, programs, strict=True):
        blocks.append(np.linalg.inv(with_jitter(kind.covariance(known, known))))
    size = sum(len(block) for block in blocks)
    precision, start = np.zeros((size, size)), 0
    for block in blocks:
        precision[start : start + len(block), start : start + len(block)] = block
        start += len(block)
    centre = np.zeros(size)
    centre[: len(physics.parameters)] = np.log([parameter.start for parameter in physics.parameters])
    return precision, centre


def _left_out(state: _State, trust: Array, covariance: Array, spread: Array, groups: NDArray[np.str_]) -> Array:
    """Returns how many standard deviations each row is off when its group isn't fitted on, to first order, shape (N,).

    The measurements of a group are taken out of the normal equations (Woodbury's identity), and the estimate moves
    by the step that this opens.
    """
    scores = np.zeros(len(spread))
    for group in np.unique(groups):
        inside = groups == group
        rows = state.jacobian[inside]
        known = rows @ covariance @ rows.T
        without = np.linalg.inv(np.diag(1 / trust[inside]) - known)
        residual = state.residual[inside]
        off = residual + known @ without @ residual
        variance = np.diag(known + known @ without @ known)
        scores[inside] = off / np.sqrt(np.maximum(variance, 0.0) + spread[inside] ** 2)
    return scores


def _widening(scores: Array) -> float:
    """The factor with which 90 % of the scores (and one more row) are inside."""
    share = min(1.0, _INSIDE * (1 + 1 / len(scores)))
    return float(np.clip(np.quantile(np.abs(scores), share) / REACH_90, *_WIDENINGS))
