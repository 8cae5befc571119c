"""Which units of layers and which blocks a small worker leaves out: vectors on a Pareto front of resources against
convergence.

In: a problem with a chain of layers, or with residual blocks, and a device.
Out: the vectors that a search found, of which each worker takes the best that it can afford (`Job.drop`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.extras import quiet_optuna
from alpa_dejavu.playground._problem import compute_bytes, compute_seconds, layer_widths, narrowable, narrowed_problem
from alpa_dejavu.playground._simulate import simulate
from alpa_dejavu.playground.job import Job, Problem, Until
from alpa_dejavu.problem import Cluster, Device, Link, checks

if TYPE_CHECKING:
    import optax
    import optuna

    from alpa_dejavu.costs import CostModels

__all__ = ["DropVector", "affordable", "pareto_front"]

_JUDGED = 0.2
"""The share of the training samples that vectors are judged by; problems' held-out samples are left alone."""


@final
@dataclasses.dataclass(frozen=True)
class DropVector:
    """The shares of each layer's units that are left out, the seconds and bytes of memory that a gradient on the device
    then takes, predicted for the network without these units, and the loss of the whole network after the search's
    short training with such gradients alone.
    """

    rates: tuple[float, ...]
    seconds: float
    memory_bytes: float
    loss: float


def pareto_front(
    problem: Problem, device: Device, batch: int = 16, *, optimizer: optax.GradientTransformation | None = None,
    trials: int = 60, steps: int = 100, seeds: Sequence[int] = (0, 1), seed: int = 0, models: CostModels | None = None,
    parts: str = "both",
) -> tuple[DropVector, ...]:  # fmt: skip
    """Returns the vectors that no other one found beats in seconds, memory and loss together, by rising seconds.

    The search is NSGA-II, over how many units of each layer are kept, and which blocks; the vector that leaves out none
    is tried first.

    Args:
        device, batch: a gradient's seconds are those on it, of so many samples.
        optimizer, steps, seeds: of the short trainings, whose losses' mean counts; None: plain gradient descent at a
            rate of 0.1.
        trials, seed: of the search: how many vectors are tried.
        models: predict operators' latency; None: the analytic one.
        parts: what may be left out: "units" of layers, whole "blocks", or "both".

    Raises:
        ValueError: the problem has no layers whose units may be left out.
        RuntimeError: Optuna isn't installed.

    References:
        Deb, Pratap, Agarwal and Meyarivan, A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II, IEEE TEVC
        6(2), 2002.
        Rapp, Khalili, Pfeiffer and Henkel, DISTREAL, AAAI 2022.
    """
    checks.count("pareto front", "trials", trials)
    checks.one_of("pareto front", "parts", parts, ("units", "blocks", "both"))
    layers, widths = narrowable(problem), layer_widths(problem)
    inputs, targets = problem.train
    order = np.random.default_rng(seed).permutation(len(targets))
    judging, rest = np.split(order, [math.ceil(_JUDGED * len(order))])
    judged = dataclasses.replace(
        problem, train=(inputs[rest], targets[rest]), held_out=(inputs[judging], targets[judging])
    )
    if not (problem.blocks if parts == "blocks" else layers):
        empty = "blocks is" if parts == "blocks" else "chain is"
        raise ValueError(f"problem {problem.name}: {empty} empty, but must name layers; choose a problem that has it")

    @functools.cache
    def vector(kept: tuple[int, ...]) -> DropVector:
        rates = tuple(1 - units / width for units, width in zip(kept, widths, strict=True))
        losses = [_loss(judged, rates, batch, optimizer, steps, trained, device) for trained in seeds]
        narrow = narrowed_problem(problem, rates)
        seconds, num_bytes = compute_seconds(narrow, batch, device, models), compute_bytes(narrow, batch)
        return DropVector(rates, seconds, num_bytes, float(np.mean(losses)))

    def figures_of(trial: optuna.Trial) -> tuple[float, float, float]:
        for n, (width, layer) in enumerate(zip(widths, layers, strict=True)):
            if parts != "blocks":
                trial.suggest_int(f"layer {n}", 1, width)
            if layer.whole and parts != "units":
                trial.suggest_categorical(f"block {n}", [True, False])
        tried = vector(_units_kept(trial.params, widths))
        return tried.seconds, tried.memory_bytes, tried.loss

    with quiet_optuna() as optuna:
        study = optuna.create_study(directions=["minimize"] * 3,
                                    sampler=optuna.samplers.NSGAIISampler(population_size=16, seed=seed))  # fmt: skip
        whole = {f"layer {n}": width for n, width in enumerate(widths)}
        study.enqueue_trial(whole | {f"block {n}": True for n in range(len(widths))})
        study.optimize(figures_of, n_trials=trials)
        best = {_units_kept(trial.params, widths) for trial in study.best_trials}
    return tuple(sorted(map(vector, best), key=lambda tried: (tried.seconds, tried.loss)))


def affordable(front: Sequence[DropVector], seconds: float = math.inf, memory_bytes: float = math.inf) -> DropVector:
    """Returns the vector of least loss among those with which a gradient takes at most so many seconds and bytes."""
    within = [vector for vector in front if vector.seconds <= seconds and vector.memory_bytes <= memory_bytes]
    if not within:
        least_s, least_bytes = (min(getattr(vector, name) for vector in front) for name in ("seconds", "memory_bytes"))
        least = units.seconds(least_s), units.size(least_bytes)
        most = units.seconds(seconds), units.size(memory_bytes)
        raise ValueError(f"front: no vector takes at most {most[0]} and {most[1]}, but one must; the least are "
                         f"{least[0]} and {least[1]}: afford more")  # fmt: skip
    return min(within, key=lambda vector: (vector.loss, vector.seconds))


def _units_kept(params: Mapping[str, int], widths: Sequence[int]) -> tuple[int, ...]:
    """Returns the units that a trial keeps of each layer, all of those that it says nothing of."""
    every = enumerate(widths)
    return tuple(params.get(f"layer {n}", width) if params.get(f"block {n}", True) else 0 for n, width in every)


def _loss(problem: Problem, rates: tuple[float, ...], batch: int, optimizer: optax.GradientTransformation | None,
          steps: int, seed: int, device: Device) -> float:  # fmt: skip
    link = Link(0.0, 1.0)
    alone = Cluster.uniform("alone", ["alone"], device, 1, link, link)
    job = Job(problem, 1.0, batch, optimizer, drop=(rates,))
    loss = float(simulate(job, alone, "all-reduce", until=Until(steps=steps), seed=seed, looks=0).loss[-1])
    return loss if math.isfinite(loss) else math.inf
