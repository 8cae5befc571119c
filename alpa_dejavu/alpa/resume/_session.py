"""What trains, and what is said of a training that lost hosts."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import final

from alpa_dejavu.problem import Plan


class HostsLostError(RuntimeError):
    """Hosts are lost, and training can't go on without them: the message says why."""


class Session(abc.ABC):
    """What trains, on some cluster. `AlpaSession` does by Alpa."""

    @abc.abstractmethod
    def start(self, plan: Plan, checkpoint: int | None) -> None:
        """Connects to the plan's hosts, compiles, and takes the state from a checkpoint, or a fresh one (None)."""

    @abc.abstractmethod
    def step(self, number: int) -> float:
        """One training step, counted from 0; its loss."""

    @abc.abstractmethod
    def save(self, number: int) -> None:
        """Writes a checkpoint of the state after so many steps; it is complete when this returns."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Lets go of the cluster, in whatever state it is; raises nothing, and may be called again."""

    @abc.abstractmethod
    def lost(self) -> Sequence[str]:
        """Names of hosts of the plan that was started first and that are gone."""

    @abc.abstractmethod
    def suspects(self, error: Exception) -> bool:
        """Whether a lost host may be behind an error, though none is known to be lost yet."""

    @abc.abstractmethod
    def interrupt(self) -> None:
        """Makes a step that hangs raise an error; called from another thread."""


@final
@dataclasses.dataclass(frozen=True)
class Recovery:
    """Hosts that were lost, and what that cost.

    Attributes:
        hosts: their names.
        failed_step: the step that was going on, or the next one.
        resumed_step: the one that training went on with: that after the last checkpoint.
        seconds: from the start of what failed to the end of the first step afterwards.
        noticed_s: the part of it until the hosts were known to be lost.
        started_s: the part of it from then until the new plan was ready to run.
        step_s: predicted seconds of a step by the new plan.
    """

    hosts: tuple[str, ...]
    failed_step: int
    resumed_step: int
    seconds: float
    noticed_s: float
    started_s: float
    step_s: float

    @property
    def steps_lost(self) -> int:
        """Steps that were done, and had to be done again."""
        return self.failed_step - self.resumed_step


@final
@dataclasses.dataclass(frozen=True)
class Trained:
    """What came out.

    Attributes:
        losses: of each step, shape (steps,); of steps done twice, the second time's.
        plan: that was run last.
        recoveries: one for each time that hosts were lost.
    """

    losses: tuple[float, ...]
    plan: Plan
    recoveries: tuple[Recovery, ...] = ()
