"""The interface of faults, what they have in common, and those of wrong gradients."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import final

import numpy as np

from alpa_dejavu.playground._arrays import Vector
from alpa_dejavu.playground._gradient import WorkerGradient
from alpa_dejavu.playground._queue import Sleeping
from alpa_dejavu.playground._virtual_world import VirtualWorld
from alpa_dejavu.playground._world import Program
from alpa_dejavu.problem import checks

_ALONE = ("sign-flip", "gaussian", "not-finite", "bit-flip", "zero")
"""The attacks that look at no other worker's gradient."""


class Fault(abc.ABC):
    """A change of workers or links, as a program beside those of the workers. Several may meet: factors multiply, and a
    worker that is lost already isn't lost again.
    """

    @abc.abstractmethod
    def run(self, world: VirtualWorld) -> Program:
        """Returns a program that changes the world (`crash`, `start`, `slow`, `spoil`, `scale_link`), and yields
        `Sleeping` between; what it does at second 0 happens before all workers begin.

        Raises:
            ValueError: there is no such worker or host; it is called before the simulation begins.
        """


def for_a_while(change: Callable[[bool], object], at_s: float, until_s: float) -> Program:
    """Makes a change at a time by a call with False, and ends it at another by a call with True, or never."""
    if at_s:
        yield Sleeping(at_s)
    change(False)
    if until_s < math.inf:
        yield Sleeping(until_s - at_s)
        change(True)


def check_times(owner: str, at_s: float, end_s: float | None, field: str = "until_s") -> None:
    checks.not_negative(owner, "at_s", at_s)
    if end_s is not None and not end_s > at_s:
        raise ValueError(f"{owner}: {field} is {end_s}, but must be after at_s, {at_s}; give a later time")


def check_worker(world: VirtualWorld, worker: int) -> None:
    if worker not in range(world.size):
        raise ValueError(f"fault: worker is {worker}, but must be one of 0..{world.size - 1}; name a worker of the job")


@final
@dataclasses.dataclass(frozen=True)
class WrongGradient(Fault):
    """A worker whose gradients are wrong for a while; those that are under way already aren't changed.

    Attributes:
        attack: an attack of `alpa_dejavu.training.robust.attacks`: "sign-flip", "gaussian", "not-finite", "bit-flip" or
            "zero".
    """

    worker: int
    attack: str = "sign-flip"
    at_s: float = 0.0
    until_s: float = math.inf

    def __post_init__(self) -> None:
        checks.one_of("wrong gradient", "attack", self.attack, _ALONE)
        check_times("wrong gradient", self.at_s, self.until_s)

    def run(self, world: VirtualWorld) -> Program:
        check_worker(world, self.worker)

        def spoil(gradient: WorkerGradient) -> float:
            gradient.spoil = functools.partial(self._spoilt, gradient.step)
            return 0.0

        return for_a_while(lambda ends: world.spoil(self.worker, spoil, ends), self.at_s, self.until_s)

    def _spoilt(self, step: int, right: Vector) -> Vector:
        if not right.size:  # time alone
            return right
        import jax

        from alpa_dejavu.training.robust.attacks import ATTACKS

        key = jax.random.fold_in(jax.random.PRNGKey(self.worker), step)
        sent, _ = ATTACKS[self.attack]().send(right[None], np.ones(1, bool), key)
        return np.asarray(sent[0])


@final
@dataclasses.dataclass(frozen=True)
class WrongStage(Fault):
    """A worker, a whole pipeline, whose one stage computes some micro-batches wrongly, for gradients begun in a while.

    The stage computes with its parameters times a factor: activations after it are wrong, the signal to the stages
    before it, and its own gradients. A monitor of what crosses between stages, such as
    `alpa_dejavu.training.robust.monitor.Monitor`, finds some of that. Then the next worker computes those micro-batches
    again: the gradient is right, but comes later by that worker's seconds for them, and its next gradient does, too.
    Without another worker, the same one computes them again, rightly.

    Attributes:
        stage, stages: its number, from 0, and how many there are: consecutive leaves of the parameters' pytree, about
            as many in each.
        found: the share of wrong gradients that the monitor finds, drawn for each; 0: there is no monitor.
    """

    worker: int
    stage: int = 0
    stages: int = 2
    factor: float = 3.0
    share: float = 1.0
    found: float = 1.0  # pylint: disable=disallowed-name  # a key of scenarios
    at_s: float = 0.0
    until_s: float = math.inf

    def __post_init__(self) -> None:
        checks.count("wrong stage", "stages", self.stages)
        if self.stage not in range(self.stages):
            raise ValueError(f"wrong stage: stage is {self.stage}, but must be one of 0..{self.stages - 1}; name one "
                             "of the stages")  # fmt: skip
        for field in ("share", "found"):
            value = getattr(self, field)
            if not 0 <= value <= 1:
                raise ValueError(f"wrong stage: {field} is {value}, but must be from 0 to 1; give a share")
        if not math.isfinite(self.factor):
            raise ValueError(f"wrong stage: factor is {self.factor}, but must be finite; give a number")
        check_times("wrong stage", self.at_s, self.until_s)

    def run(self, world: VirtualWorld) -> Program:
        check_worker(world, self.worker)
        begun: list[tuple[Vector, np.random.Generator]] = []

        def change(ends: bool) -> None:
            if not ends:
                begun.append((self._multipliers(world.learner.leaves), world.fault_generator()))
            world.spoil(self.worker, spoil, ends)

        def spoil(gradient: WorkerGradient) -> float:
            multipliers, generator = begun[-1]
            if generator.random() < self.found:
                helper, waits_s = world.compute_again(self.worker, self.share)
                world.recorder.note(f"stage {self.stage} of worker {self.worker} computed wrongly: what was found, "
                                    f"worker {helper} computed again")  # fmt: skip
                return waits_s
            wrong = world.learner.gradient(self.worker, gradient.step, gradient.version, gradient.at, gradient.rows)
            wrong.at = gradient.at * multipliers
            share = np.float32(self.share)
            if gradient.spoil is None:  # another fault may send something else altogether
                gradient.spoil = lambda right: right + share * (wrong.values - right)
            return 0.0

        return for_a_while(change, self.at_s, self.until_s)

    def _multipliers(self, leaves: tuple[int, ...]) -> Vector:
        """Returns the factor of each parameter, by the sizes of the leaves of their pytree."""
        if not leaves:  # time alone
            return np.ones(0, np.float32)
        if len(leaves) < self.stages:
            raise ValueError(f"wrong stage: stages is {self.stages}, but must be at most {len(leaves)}, a leaf of the "
                             "parameters in each; give fewer")  # fmt: skip
        sizes = [int(part.sum()) for part in np.array_split(leaves, self.stages)]
        factors = np.where(np.arange(self.stages) == self.stage, self.factor, 1.0)
        return np.repeat(factors, sizes).astype(np.float32)
