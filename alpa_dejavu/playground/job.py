"""A training job of the playground: a problem, its batches and optimizer, and the seconds that workers compute."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import Cluster, Plan, checks

if TYPE_CHECKING:
    from alpa_dejavu.costs import CostModels

__all__ = ["Job", "Problem", "Until", "batches", "draws"]

Floats = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A model and its data.

    Attributes:
        name: for people.
        init: makes the parameters, a pytree of float32 arrays, of a jax random key.
        loss: the mean loss, a scalar, of the parameters on a batch `(inputs, targets)`.
        accuracy: the share of a batch's targets that the parameters predict; None: there are no classes.
        train: inputs and targets that workers draw their batches from, first dimension the samples.
        held_out: inputs and targets by which the history's loss and accuracy are told.
        coordinates: returns for some inputs the indices of the parameters, flat, that each one's loss depends on, shape
            (samples, indices); None: all of them.
        logits: what the model puts out, by the parameters and some inputs, shape (*targets, classes); None: there are
            no classes.
    """

    name: str
    init: Callable[[Any], Any]
    loss: Callable[[Any, Any], Any]
    accuracy: Callable[[Any, Any], Any] | None
    train: tuple[NDArray[Any], NDArray[Any]]
    held_out: tuple[NDArray[Any], NDArray[Any]]
    coordinates: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    logits: Callable[[Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        for field in ("train", "held_out"):
            inputs, targets = getattr(self, field)
            if not 0 < len(inputs) == len(targets):
                raise ValueError(f"problem {self.name}: {field} is {len(inputs)} inputs and {len(targets)} targets, "
                                 "but must be as many of both; give each sample its target")  # fmt: skip


@final
@dataclasses.dataclass(frozen=True)
class Until:
    """When a simulation ends: at a virtual time, or when each worker has computed so many gradients.

    Attributes:
        seconds: virtual seconds; infinity: time doesn't end it.
        steps: gradients of each worker; None: no number of them ends it.
    """

    seconds: float = math.inf
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.steps is not None:
            checks.count("until", "steps", self.steps)
        if not self.seconds > 0:
            raise ValueError(f"until: seconds is {self.seconds!r}, but must be above 0; give virtual seconds")
        if self.steps is None and math.isinf(self.seconds):
            raise ValueError("until: seconds is inf and steps is None, but must end the simulation; give one of them")


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """Training by several workers: what each computes, on how many samples, in how many seconds.

    Attributes:
        problem: the model and its data; None: nothing is computed, and time alone is simulated.
        compute_s: seconds of one gradient, of all workers or of each.
        batch: samples of one gradient.
        optimizer: an optax gradient transformation; None: plain gradient descent at a rate of 0.1.
        spread: one standard deviation of the logarithm of compute seconds, drawn anew for each step of each worker.
        hosts: for each worker the index of its host; None: a worker is a device, those of the first host first.
        num_bytes: the bytes of the parameters, or of a gradient; None: four for each parameter of the problem.
        shards: for each worker the indices of the training samples that it draws from; None: all, for each.
        side_by_side: whether gradients of workers at the same point of the simulation are computed together, by `vmap`,
            or one by one, which takes longer and gives the bits of a loop over them.
        own_starts: whether each worker begins at parameters of its own instead of the same.
    """

    problem: Problem | None
    compute_s: float | Sequence[float]
    batch: int = 16
    optimizer: Any = None
    spread: float = 0.0
    hosts: Sequence[int] | None = None
    num_bytes: float | None = None
    shards: Sequence[Sequence[int]] | None = None
    side_by_side: bool = True
    own_starts: bool = False

    def __post_init__(self) -> None:
        checks.count("job", "batch", self.batch)
        checks.not_negative("job", "spread", self.spread)
        for seconds in np.atleast_1d(self.compute_s):
            checks.not_negative("job", "compute_s", float(seconds))
        if self.num_bytes is not None:
            checks.not_negative("job", "num_bytes", self.num_bytes)
        elif self.problem is None:
            raise ValueError("job: num_bytes is None without a problem, but messages need a size; give num_bytes")
        if self.shards is not None and not all(len(shard) for shard in self.shards):
            empty = next(n for n, shard in enumerate(self.shards) if not len(shard))
            raise ValueError(f"job: shards[{empty}] is empty, but each worker must have samples; give it some")

    def worker_hosts(self, cluster: Cluster) -> tuple[int, ...]:
        """Returns the index of each worker's host in a cluster.

        Raises:
            ValueError: a host isn't there, or something else is given for another number of workers.
        """
        each_device = [n for n, host in enumerate(cluster.hosts) for _ in range(host.num_devices)]
        hosts = tuple(each_device if self.hosts is None else self.hosts)
        if not hosts or not all(0 <= host < len(cluster.hosts) for host in hosts):
            raise ValueError(f"job: hosts is {hosts}, but must be indices of 0..{len(cluster.hosts) - 1}; there are "
                             f"{len(cluster.hosts)} hosts")  # fmt: skip
        for field, given in (("compute_s", self.compute_s), ("shards", self.shards)):
            counted = len(hosts) if given is None or isinstance(given, (int, float)) else len(given)
            if counted != len(hosts):
                raise ValueError(f"job: {field} is given for {counted} workers, but must be for {len(hosts)}; give as "
                                 "many, or hosts for as many")  # fmt: skip
        return hosts

    @classmethod
    def predicted(cls, problem: Problem, cluster: Cluster, batch: int = 16, models: CostModels | None = None,
                  **more: Any) -> Job:  # fmt: skip
        """Returns a job with a worker on each device, whose compute seconds the planner's cost models predict.

        Args:
            problem: the model and its data.
            cluster: the cluster with the devices.
            batch: samples of one gradient.
            models: the cost models; None: the analytic latency model.
            **more: other attributes of the job.
        """
        from alpa_dejavu.playground._compute_seconds import compute_seconds

        known = {host.device: 0.0 for host in cluster.hosts}
        known = {device: compute_seconds(problem, batch, device, models) for device in known}
        each = [known[host.device] for host in cluster.hosts for _ in range(host.num_devices)]
        return cls(problem, each, batch, **more)

    @classmethod
    def of_plan(cls, problem: Problem | None, plan: Plan, cluster: Cluster, copies: int = 1, **more: Any) -> Job:
        """Returns a job whose workers are whole pipelines of a plan: each takes the plan's step time for a gradient,
        and sends from the host of its first stage.

        Args:
            problem: the model and its data; None: time alone.
            plan: the plan of one pipeline.
            cluster: the cluster of all copies; copy c's stages are on the hosts that follow those of copy c - 1.
            copies: the number of pipelines.
            **more: other attributes of the job.
        """
        span = len({host for stage in plan.stages for host in stage.hosts})
        if span * copies > len(cluster.hosts):
            raise ValueError(f"copies is {copies}, but must be at most {len(cluster.hosts) // span}; a pipeline takes "
                             f"{span} of the {len(cluster.hosts)} hosts")  # fmt: skip
        return cls(problem, plan.step_s, hosts=tuple(span * n for n in range(copies)), **more)


def draws(seed: int, *name: int) -> np.random.Generator:
    """Returns the generator of one purpose, given by numbers: it depends on nothing that others draw."""
    return np.random.default_rng([seed, *name])


def batches(job: Job, seed: int, worker: int) -> Iterator[NDArray[np.int64]]:
    """Yields the indices of the samples of a worker's batches, shape (batch,), drawn with replacement; without end."""
    assert job.problem is not None, "there are samples"
    generator = draws(seed, 1, worker)
    shard = None if job.shards is None else np.asarray(job.shards[worker], np.int64)
    while True:
        drawn = generator.integers(len(job.problem.train[0]) if shard is None else len(shard), size=job.batch)
        yield drawn if shard is None else shard[drawn]
