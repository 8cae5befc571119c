"""The interface of what trains, and the result of a training that may have lost hosts."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import final

from alpa_dejavu.problem import Plan


class HostsLostError(RuntimeError):
    """An error that says which hosts are lost, and why training can't go on without them."""


class Session(abc.ABC):
    """The interface of a training on a cluster, with checkpoints, that a loop can go on with after hosts are lost."""

    @abc.abstractmethod
    def start(self, plan: Plan, checkpoint: int | None) -> None:
        """Connects to a plan's hosts, compiles the training step, and reads the training state from the checkpoint
        written after so many steps (`checkpoint`); None: makes a fresh state.
        """

    @abc.abstractmethod
    def step(self, number: int) -> float:
        """Runs one training step, counted from 0, and returns its loss."""

    @abc.abstractmethod
    def save(self, number: int) -> None:
        """Writes a checkpoint of the training state after `number` steps; it is complete when this returns."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends the use of the cluster by the training, in whatever state; raises nothing, and may be called again."""

    @abc.abstractmethod
    def lost(self) -> Sequence[str]:
        """Returns the names of the hosts that are lost, of those that the first started plan had."""

    @abc.abstractmethod
    def suspects(self, error: Exception) -> bool:
        """Returns whether a lost host may be behind an error, though none is known to be lost yet."""

    @abc.abstractmethod
    def interrupt(self) -> None:
        """Makes a step that hangs raise an error; called from another thread."""


@final
@dataclasses.dataclass(frozen=True)
class Recovery:
    """A recovery of a training from a loss of hosts, and what that cost.

    Attributes:
        hosts: the names of the lost hosts.
        failed_step: the step that was going on, or the next one.
        resumed_step: the step that training went on with, which is the one after the last checkpoint.
        seconds: the seconds from the start of what failed to the end of the first step afterwards.
        noticed_s: the part of these until the hosts were known to be lost.
        started_s: the part of these from then until the new plan was ready to run.
        step_s: the predicted seconds of a step by the new plan.
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
        """Returns the number of training steps that had been done, and had to be done again after the loss of hosts."""
        return self.failed_step - self.resumed_step


@final
@dataclasses.dataclass(frozen=True)
class Trained:
    """The result of a training: its losses, its last plan, and what happened on the way.

    Attributes:
        losses: the loss of each step, shape (steps,); for steps that were done twice, the second loss.
        plan: the plan that was run last.
        recoveries: one for each time that hosts were lost.
    """

    losses: tuple[float, ...]
    plan: Plan
    recoveries: tuple[Recovery, ...] = ()
