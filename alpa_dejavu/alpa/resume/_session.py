"""The interface of what trains, and the result of a training that may have lost hosts, or got some."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import final

from alpa_dejavu.problem import Plan


class HostsLostError(RuntimeError):
    """An error that says which hosts are lost, and why training can't go on without them."""


class Session(abc.ABC):
    """A training on a cluster that a loop can go on with; copies, devices and joining hosts are optional."""

    @property
    def saves(self) -> bool:
        """Returns whether checkpoints can be written."""
        return True

    @property
    def copies(self) -> bool:
        """Returns whether the state can be copied to neighbours' hosts."""
        return False

    @abc.abstractmethod
    def start(self, plan: Plan, checkpoint: int | None) -> None:
        """Connects to a plan's hosts, compiles, and reads the state after `checkpoint` steps; None: a fresh one."""

    @abc.abstractmethod
    def step(self, number: int) -> float:
        """Runs one training step, counted from 0, and returns its loss."""

    @abc.abstractmethod
    def save(self, number: int) -> None:
        """Writes a checkpoint of the training state after `number` steps; it is complete when this returns."""

    def copy(self, number: int) -> None:
        """Copies the training state after `number` steps to neighbours' hosts; the copy is whole when this returns."""
        raise NotImplementedError(f"{type(self).__name__} makes no copies; train(copy_every=None)")

    def copied(self) -> int | None:
        """Returns after how many steps the newest copy was made, if nothing of it is lost or torn; else None."""
        return None

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends the use of the cluster by the training, in whatever state; raises nothing, and may be called again."""

    def close(self) -> None:  # noqa: B027
        """Gives up what was kept for starting again, such as copies; called once at the end, and raises nothing."""

    @abc.abstractmethod
    def lost(self) -> Sequence[str]:
        """Returns the names of the hosts that are lost, of those that a started plan had."""

    def broken(self) -> Sequence[str] | None:
        """Returns living hosts' devices that don't compute, such as "host-1/3"; None: not known. Nothing runs then."""
        return None

    def joined(self) -> Mapping[str, int]:
        """Returns the hosts that are there and that no plan has used yet, with the number of their devices."""
        return {}

    def leave_out(self, names: Collection[str]) -> None:  # noqa: B027
        """Keeps the training from hosts and devices, such as "host-1/3"; called when nothing runs."""

    @abc.abstractmethod
    def suspects(self, error: Exception) -> bool:
        """Returns whether a lost host may be behind an error, though none is known to be lost yet."""

    @abc.abstractmethod
    def interrupt(self) -> None:
        """Makes a step that hangs raise an error; called from another thread."""


@final
@dataclasses.dataclass(frozen=True)
class Recovery:
    """A recovery of a training from a loss of hosts, devices or memory, and what that cost."""

    hosts: tuple[str, ...]  # the names of the lost hosts and devices
    failed_step: int  # the step that was going on, or the next one
    resumed_step: int  # the step that training went on with, which is the one after the last checkpoint or copy
    seconds: float  # the seconds from the start of what failed to the end of the first step afterwards
    noticed_s: float  # the part of these until it was known what was lost
    started_s: float  # the part of these from then until the new plan was ready to run
    step_s: float  # the predicted seconds of a step by the new plan
    cause: str = ""  # a few words that say what happened

    @property
    def steps_lost(self) -> int:
        """Returns the number of training steps that had been done, and had to be done again after the loss of hosts."""
        return self.failed_step - self.resumed_step


@final
@dataclasses.dataclass(frozen=True)
class Change:
    """A change to another plan after a checkpoint or copy, by which no step was lost."""

    joined: tuple[str, ...]  # the names of the hosts that were taken in
    left_out: tuple[str, ...]  # the names of the hosts and devices that were left out
    step: int  # the step that training went on with
    seconds: float  # the seconds from the checkpoint or copy until the new plan was ready to run
    cost_s: float  # the seconds that the change was expected to take
    saved_s: float  # the seconds that the steps left were expected to take less by the new plan


@final
@dataclasses.dataclass(frozen=True)
class Trained:
    """The result of a training: its losses, its last plan, and what happened on the way."""

    losses: tuple[float, ...]  # the loss of each step, shape (steps,); for steps that were done twice, the second loss
    plan: Plan  # the plan that was run last
    recoveries: tuple[Recovery, ...] = ()  # one for each time that hosts, devices or memory were lost
    changes: tuple[Change, ...] = ()  # one for each time that hosts were taken in, or left out
