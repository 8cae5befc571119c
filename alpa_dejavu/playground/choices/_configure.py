"""Trains by a mix of options whose shares are learned, until one option is left."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from alpa_dejavu.playground._arrays import Batch, Data, Flat, Scalar, Vector, Vectors
from alpa_dejavu.playground._gradient import programs
from alpa_dejavu.playground._journal import Journal
from alpa_dejavu.playground._learner import JaxLearner
from alpa_dejavu.playground._simulate import simulate
from alpa_dejavu.playground.choices._options import Choice, Matrix, Mixing, Option, Segments, options
from alpa_dejavu.playground.history import History
from alpa_dejavu.playground.job import Job, Problem, Until
from alpa_dejavu.problem import Cluster

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float

    from alpa_dejavu.playground.choices._options import Shares


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Configured:
    """A training that was configured while it went on: S steps of a mix of K options, then one of them alone.

    Attributes:
        time_s: moments in virtual seconds: the beginning, after each step of the mix, and those of what followed. The
            mix's own seconds are in: of all options' segments, of means, and of looking ahead.
        shares: each option's share in each step, and at last; 0: it is out.
        history: the training by that option alone, from second 0 on; None: no time was left.
    """

    time_s: Float[np.ndarray, " E"]
    loss: Float[np.ndarray, " E"]
    options: tuple[Option, ...]
    shares: Float[np.ndarray, "S+1 K"]
    mixing_s: float
    chosen: Option
    history: History | None

    def seconds_to(self, loss: float) -> float:
        """Returns the first moment in seconds at which the held-out loss was at most so much; infinity if none was."""
        return float(min(self.time_s[self.loss <= loss], default=np.inf))


def configure_while_training(
    job: Job,
    cluster: Cluster,
    rows: Sequence[Sequence[Choice]],
    *,
    until: Until,
    mixing: Mixing | None = None,
    weight_of_seconds: float | None = None,
    seed: int = 0,
    looks: int = 50,
) -> Configured:
    """Trains by a mix of all options, whose shares follow the held-out loss and the seconds; the last one goes on.

    The same arguments give the same result to the bit.

    Args:
        job: what is trained, by plain gradient descent.
        rows: what may be chosen; each combination of one choice of each row is an option.
        until: the virtual seconds of it all, the mix's own included.
        weight_of_seconds: the loss that a virtual second is worth; None: by how much the mix changes it in one, at
            each step.

    Raises:
        ValueError: the job has no problem, its optimizer keeps something between steps, the end isn't one of seconds
            alone, the weight is below 0, or the rows aren't right.
    """
    problem = _checked(job, until, weight_of_seconds)
    used, every = Mixing() if mixing is None else mixing, options(job, rows)
    learner = JaxLearner(job, problem, seed, Journal(None, {}))
    params = learner.start(0)
    segments = Segments(job, cluster, every, len(params), seed)
    matrix, time_s, losses = Matrix.of([option.places for option in every]), [0.0], [learner.score(params)[0]]
    if used.known_first and weight_of_seconds is None:
        matrix = matrix.moved(segments.planned_s / segments.planned_s.mean(), used.rate).hardened(used.drop)
    shares, averages = [matrix.shares()], np.zeros(len(every))
    while np.count_nonzero(shares[-1]) > 1 and time_s[-1] < until.seconds:
        step = _mixed(segments, params, shares[-1], used, len(shares) - 1, seed)
        params = step.params
        count = sum(map(job.samples, range(segments.workers)))
        drawn = np.random.default_rng([seed, 8, len(shares) - 1]).integers(len(problem.held_out[0]), size=count)
        inputs, targets = (part[drawn] for part in problem.held_out)
        slopes = look_ahead_gradient(problem, params, step.displacements, (inputs, targets))
        averages, gradient = _gradient(slopes, averages, shares[-1], segments, step.applied, used, weight_of_seconds)
        matrix = matrix.moved(gradient, used.rate).hardened(1.0 if len(shares) >= used.most_steps else used.drop)
        shares.append(matrix.shares())
        # To look ahead each worker computes one gradient, and all are added up.
        time_s.append(time_s[-1] + step.seconds + float(np.max(job.compute_s)) + segments.meeting_s)
        losses.append(learner.score(params)[0])
    chosen = every[int(np.argmax(shares[-1]))]
    mixed = Configured(np.array(time_s), np.array(losses), every, np.array(shares), time_s[-1], chosen, None)
    return _gone_on(mixed, params, cluster, until, seed, looks)


def _gone_on(mixed: Configured, params: Vector, cluster: Cluster, until: Until, seed: int, looks: int) -> Configured:
    """Returns the mix's training and then that by the chosen option alone, as long as seconds are left."""
    time_s, loss, history, way = mixed.time_s, mixed.loss, None, mixed.chosen
    if (left_s := until.seconds - mixed.mixing_s) > 0:
        history = simulate(way.job, cluster, way.exchange, until=Until(seconds=left_s), seed=seed, looks=looks,
                           start=params)  # fmt: skip
        time_s = np.append(time_s, mixed.mixing_s + history.time_s[1:])
        loss = np.append(loss, history.loss[1:])
    inside = time_s <= until.seconds  # the mix's last step may have gone on beyond the end
    return dataclasses.replace(mixed, time_s=time_s[inside], loss=loss[inside], history=history)


class _MixStep(NamedTuple):
    """Where a step of the mix came to, each option's displacement for one gradient of each worker (0 where it applied
    none), which options applied some, and the seconds of all segments together.
    """

    params: Vector
    displacements: Vectors
    applied: Bool[np.ndarray, " options"]
    seconds: float


def _mixed(segments: Segments, params: Vector, shares: Shares, mixing: Mixing, number: int, seed: int) -> _MixStep:
    """Trains by each option that has a share for its part of the seconds, each from where the one before came to."""
    (live,) = np.nonzero(shares)
    whole_s = mixing.gradients * segments.workers * float(segments.planned_s.max())
    moved, seconds = np.zeros((len(shares), len(params)), np.float32), 0.0
    applied, at = np.zeros(len(shares), np.bool_), params
    for option in np.random.default_rng([seed, 7, number]).permutation(live):
        share_s = whole_s * float(shares[option]) * len(live)
        segment = segments.run(int(option), at, share_s, number)
        change, applied[option] = segment.params - at, segment.gradients > 0
        moved[option] = change * np.float32(segments.workers / max(segment.gradients, 1))
        seconds += segment.seconds
        at = at + change
    return _MixStep(at, moved, applied, seconds)


def _gradient(
    slopes: Shares, averages: Shares, shares: Shares, segments: Segments, applied: Bool[np.ndarray, " options"],
    mixing: Mixing, weight: float | None,
) -> tuple[Shares, Shares]:  # fmt: skip
    """Returns the options' averages of the loss, and the gradient of loss and seconds by shares, both in units of what
    a gradient of each worker changes the loss by now.

    The loss of one step is noisy and the seconds are known: averages begin at 0, where all options gain alike.
    """
    weights = shares * applied
    if not weights.any():
        return averages, segments.planned_s / segments.planned_s.min()
    mean = float(np.average(slopes, weights=weights))
    unit = max(float(np.average(np.abs(slopes), weights=weights)), 1e-30)
    relative = np.where(applied, np.clip((slopes - mean) / unit, -3.0, 3.0), averages)
    after = averages + mixing.averaged * (relative - averages)
    planned_s = segments.planned_s * segments.workers
    worth = unit / float(np.average(planned_s, weights=weights)) if weight is None else weight
    return after, after + worth * planned_s / unit


def _checked(job: Job, until: Until, weight: float | None) -> Problem:
    """Returns the job's problem, if all is as it must be."""
    if job.problem is None:
        raise ValueError("job: problem is None, but choices follow its loss; give one, or compare seconds alone")
    learner = JaxLearner(job, job.problem, 0, Journal(None, {}))
    if learner.keeps(learner.state(learner.start(0))):
        raise ValueError("job: optimizer keeps moments or counts steps, but must not, as each segment begins anew; "
                         "choose plain gradient descent")  # fmt: skip
    if until.steps is not None:
        raise ValueError(f"until: steps is {until.steps}, but must be None, as options take unlike seconds for a step; "
                         "give seconds")  # fmt: skip
    if weight is not None and not 0 <= weight < math.inf:
        raise ValueError(f"weight_of_seconds is {weight}, but must be at least 0 and finite; None weighs by the gain")
    return job.problem


def look_ahead_gradient(problem: Problem, params: Vector, displacements: Vectors, held_out: Data) -> Shares:
    """Returns the derivative of the loss of held-out samples after a step by each option's share.

    A step with shares q instead of p would have come to params + sum over o of (q_o - p_o) displacements[o], where
    `params` are those that the step came to.

    References:
        Liu, Simonyan and Yang, DARTS: Differentiable Architecture Search, ICLR 2019 (its first order).
    """
    return np.asarray(_look_ahead(problem)(params, displacements, held_out), np.float64)


@functools.lru_cache(maxsize=8)
def _look_ahead(problem: Problem) -> Callable[[Vector, Vectors, Data], Float[Array, " options"]]:
    import jax

    tree = programs(problem, None).tree

    def slopes(params: Flat, displacements: Float[Array, "options P"], held_out: Batch) -> Float[Array, " options"]:
        def loss(change: Float[Array, " options"]) -> Scalar:
            return problem.loss(tree(params + change @ displacements), held_out)

        return jax.grad(loss)(jax.numpy.zeros(len(displacements)))

    return jax.jit(slopes)
