"""A training job of the playground: a problem, its batches and optimizer, and the seconds that workers compute."""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from alpa_dejavu._util.dataclass_format import Rare
from alpa_dejavu._util.format_fields import Count, SecondsAboveZero
from alpa_dejavu.playground._arrays import Rows
from alpa_dejavu.playground._data import DataMove, Shards, Split, SplitTask
from alpa_dejavu.playground._problem import Problem, compute_seconds, narrowable, narrowed_problem
from alpa_dejavu.problem import Cluster, Device, Plan, checks

if TYPE_CHECKING:
    import optax

    from alpa_dejavu.costs import CostModels

__all__ = ["Job", "Problem", "Until", "local_batches"]


@final
@dataclasses.dataclass(frozen=True)
class Until:
    """When a simulation ends: at virtual seconds, or when each worker has computed so many gradients."""

    seconds: Rare[SecondsAboveZero] = math.inf
    steps: Rare[Count | None] = None

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
        batch: samples of one gradient, of all workers or of each.
        spread: one standard deviation of the logarithm of compute seconds, drawn anew for each step of each worker.
        hosts: for each worker the index of its host; None: a worker is a device, those of the first host first.
        num_bytes: the bytes of the parameters, or of a gradient; None: four for each parameter of the problem.
        shards: for each worker the indices of the training samples that it draws from, or a split, which draws them by
            the run's seed; None: all, for each.
        side_by_side: whether gradients of workers at the same point of the simulation are computed together, by `vmap`,
            or one by one, which takes longer and gives the bits of a loop over them.
        own_starts: whether each worker begins at parameters of its own instead of the same.
        sample_bytes: the bytes of a sample that is moved; None: those of its arrays.
        drop: for each worker the shares of the units of the problem's layers and blocks that it leaves out of each
            gradient, drawn anew for each, and 1 for a block that it leaves out whole; `compute_s` is what the rest
            takes. None: nobody leaves out any.
    """

    problem: Problem | None
    compute_s: float | Sequence[float]
    batch: int | Sequence[int] = 16
    optimizer: optax.GradientTransformation | None = None
    spread: float = 0.0
    hosts: Sequence[int] | None = None
    num_bytes: float | None = None
    shards: Sequence[Sequence[int] | Rows] | Split | None = None
    side_by_side: bool = True
    own_starts: bool = False
    moves: DataMove | None = None
    sample_bytes: float | None = None
    drop: Sequence[Sequence[float]] | None = None

    def __post_init__(self) -> None:
        self._check_kinds()
        for samples in (self.batch,) if isinstance(self.batch, int) else self.batch:
            checks.count("job", "batch", samples)
        checks.fields("job", self, "", "spread num_bytes sample_bytes")
        for seconds in np.atleast_1d(self.compute_s):
            checks.not_negative("job", "compute_s", float(seconds))
        if self.num_bytes is None and self.problem is None:
            raise ValueError("job: num_bytes is None without a problem, but messages need a size; give num_bytes")
        for n, shard in enumerate(self.settled_shards() or ()):
            if not len(shard):
                raise ValueError(f"job: shards[{n}] is empty, but each worker must have samples; give it some")
        if self.problem is None and (self.moves is not None or isinstance(self.shards, Split)):
            field = "shards" if self.moves is None else "moves"
            raise ValueError(f"job: {field} is {getattr(self, field)!r}, but must be None where time alone is "
                             "simulated: there are no samples, losses or gradients; give it a problem")  # fmt: skip
        if self.moves is not None and self.shards is None:
            raise ValueError(f"job: moves is {self.moves!r}, but shards is None: each worker draws from all samples; "
                             "give it a split, such as 'independent', or leave moves out")  # fmt: skip
        if self.drop is not None:
            _check_drop(self.problem, self.drop)

    def samples(self, worker: int) -> int:
        """Returns the samples of a worker's gradient."""
        return int(self.batch if isinstance(self.batch, int) else self.batch[worker])

    def worker_hosts(self, cluster: Cluster) -> tuple[int, ...]:
        """Returns the index of each worker's host in a cluster; raises ValueError where the job doesn't fit to it."""
        each_device = [n for n, host in enumerate(cluster.hosts) for _ in range(host.num_devices)]
        hosts = tuple(each_device if self.hosts is None else self.hosts)
        if not hosts or not all(0 <= host < len(cluster.hosts) for host in hosts):
            raise ValueError(f"job: hosts is {hosts}, but must be indices of 0..{len(cluster.hosts) - 1}; there are "
                             f"{len(cluster.hosts)} hosts")  # fmt: skip
        for field, values in (
            ("compute_s", self.compute_s), ("batch", self.batch), ("shards", self.settled_shards()),
            ("drop", self.drop),
        ):  # fmt: skip
            counted = len(hosts) if values is None or isinstance(values, (int, float)) else len(values)
            if counted != len(hosts):
                raise ValueError(f"job: {field} is given for {counted} workers, but must be for {len(hosts)}; give as "
                                 "many, or hosts for as many")  # fmt: skip
        return hosts

    def _check_kinds(self) -> None:
        shards = self.settled_shards()
        every: Any = shards if np.iterable(shards) else [shards]
        if shards is not None and not all(
            np.ndim(rows) == 1 and (np.asarray(rows).dtype.kind in "iu" or not len(rows)) for rows in every
        ):
            raise ValueError(f"job: shards is {shards!r}, but must be None, the indices of each worker's samples, or a "
                             "Split; give one, such as playground.data.split('dirichlet')")  # fmt: skip
        for name, value, kind, example in (
            ("problem", self.problem, Problem, "playground.problem('digits-mlp')"),
            ("moves", self.moves, DataMove, "playground.data.move('by-loss')"),
        ):
            if not (value is None or isinstance(value, kind)):
                raise ValueError(f"job: {name} is {value!r}, but must be None or a {kind.__name__}; give one, such as "
                                 f"{example}")  # fmt: skip

    def settled_shards(self) -> Sequence[Sequence[int] | Rows] | None:
        """Returns the shards that are given as such; None: there is none, or a split."""
        return None if isinstance(self.shards, Split) else self.shards

    def bytes_of_a_sample(self) -> float:
        """Returns the bytes of a sample that is moved."""
        if self.sample_bytes is not None or self.problem is None:
            return self.sample_bytes or 0.0
        return float(sum(array.nbytes // len(array) for array in self.problem.train))

    def split(self, cluster: Cluster, seed: int) -> Shards | None:
        """Returns the samples of each worker in a run with a seed; None: all draw from all samples."""
        hosts = self.worker_hosts(cluster)
        if not isinstance(self.shards, Split):
            return None if self.shards is None else Shards(tuple(np.asarray(rows, np.int64) for rows in self.shards))
        assert self.problem is not None, "it was checked"
        compute_s = np.broadcast_to(np.asarray(self.compute_s, np.float64), len(hosts))
        return self.shards.split(SplitTask(*self.problem.train, hosts, tuple(compute_s.tolist()), seed))

    @classmethod
    def predicted(cls, problem: Problem, cluster: Cluster, batch: int | Sequence[int] = 16,
                  models: CostModels | None = None, **more: Any) -> Job:  # fmt: skip
        """Returns a job with a worker on each device, or on each of `hosts`, whose compute seconds the planner's cost
        models predict (None: the analytic latency model): those of the problem without the units that the worker leaves
        out (`drop`). `more` are other attributes of the job.
        """

        @functools.cache
        def seconds(device: Device, samples: int, left_out: tuple[float, ...] | None) -> float:
            rest = problem if left_out is None else narrowed_problem(problem, left_out)
            return compute_seconds(rest, samples, device, models)

        hosts = cls(problem, 0.0, hosts=more.get("hosts")).worker_hosts(cluster)
        job = cls(problem, [0.0] * len(hosts), batch, **more)
        job.worker_hosts(cluster)
        on = [(cluster.hosts[host].device, job.samples(n)) for n, host in enumerate(hosts)]
        left_out = [None] * len(on) if job.drop is None else map(tuple, job.drop)
        compute_s = [seconds(*on_device, rates) for on_device, rates in zip(on, left_out, strict=True)]
        return dataclasses.replace(job, compute_s=compute_s)

    @classmethod
    def of_plan(cls, problem: Problem | None, plan: Plan | Sequence[Plan], cluster: Cluster, copies: int = 1,
                **more: Any) -> Job:  # fmt: skip
        """Returns a job whose workers are whole pipelines of a plan, or of several that aren't alike: each takes its
        plan's step time for a gradient, and sends from the host of its first stage. There are so many copies of each; a
        pipeline's hosts in the cluster follow those of the one before. `more` are other attributes of the job.
        """
        pipelines = ((plan,) if isinstance(plan, Plan) else tuple(plan)) * copies
        spans = [len({host for stage in pipeline.stages for host in stage.hosts}) for pipeline in pipelines]
        if sum(spans) > len(cluster.hosts):
            most = copies * len(cluster.hosts) // sum(spans)
            raise ValueError(f"copies is {copies}, but must be at most {most}; the pipelines would take {sum(spans)} "
                             f"of {len(cluster.hosts)} hosts, so give fewer, or more hosts")  # fmt: skip
        firsts = itertools.accumulate([0, *spans[:-1]])
        return cls(problem, [pipeline.step_s for pipeline in pipelines], hosts=tuple(firsts), **more)


def _check_drop(problem: Problem | None, drop: Sequence[Sequence[float]]) -> None:
    layers = () if problem is None else narrowable(problem)
    if problem is None or not layers:
        name = "without a problem" if problem is None else f"of {problem.name}"
        raise ValueError(f"job: drop is given, but a job {name} has no layer whose units may be left out; leave it out")
    for n, rates in enumerate(drop):
        if len(rates) != len(layers):
            raise ValueError(f"job: drop[{n}] is {tuple(rates)}, but must be {len(layers)} shares; {problem.name} "
                             "has as many layers with units to leave out")  # fmt: skip
        for rate, layer in zip(rates, layers, strict=True):
            if not (layer.whole and rate == 1):
                checks.share("job", f"drop[{n}]", rate)


def local_batches(total: int, sample_s: Sequence[float]) -> tuple[int, ...]:
    """Returns how many of all samples each worker's gradient takes, at least one, so that the slowest takes as short as
    can be, by the seconds that each worker takes for a sample.

    >>> local_batches(64, (1.0, 1.0, 3.0))
    (28, 27, 9)
    """
    for worker, seconds in enumerate(sample_s):
        checks.positive("local batches", f"sample_s[{worker}]", seconds)
    if total < len(sample_s):
        raise ValueError(f"local batches: total is {total}, but must be at least {len(sample_s)}, a sample for each "
                         "worker; give more")  # fmt: skip
    counts = [1] * len(sample_s)
    ends_s = [(2 * seconds, worker) for worker, seconds in enumerate(sample_s)]
    heapq.heapify(ends_s)
    for _ in range(total - len(counts)):  # each next sample is where it is done first
        end_s, worker = heapq.heappop(ends_s)
        counts[worker] += 1
        heapq.heappush(ends_s, (end_s + sample_s[worker], worker))
    return tuple(counts)
