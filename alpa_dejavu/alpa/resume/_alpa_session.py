"""Training by Alpa on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

from alpa_dejavu.alpa.resume._session import Session
from alpa_dejavu.calibration.measurement import StepNotes
from alpa_dejavu.problem import Plan


@final
class AlpaSession(Session):
    """A session that trains with Alpa's pipelines and distributed checkpoints, on the Ray cluster that this program is
    connected to.

    The hosts that the first plan uses, in the order that its cluster has them, are taken to be Alpa's hosts in their
    order. The last checkpoint stays in the folder.

    Devices go by Ray's numbers of them on their host. One that turns out to be broken is held by a process of its own,
    so that no worker gets it.

    Args:
        step: a function from a state and a batch to the next state and the loss; gradients by jax or by Alpa.
        state: a function that makes the first state. It must make the same one each time.
        batch: a function from the number of a step to its batch. It must make the same one each time.
        folder: the folder of the checkpoints; all hosts must have it, at the same path. None: none are written, and
            what is lost comes back from the copies that neighbours' hosts keep in their memory.
        neighbours: by its name, the host that keeps what each host has; hosts that aren't named, or whose neighbour is
            gone, have the next one in their order.
        probe: a function that raises an error where a device doesn't compute. After an error of Ray it is called for
            each device, in a process that has this device alone; it must be importable on all hosts. None: something is
            computed by jax.
    """

    def __init__(
        self,
        step: Callable[[Any, Any], tuple[Any, Any]],
        state: Callable[[], Any],
        batch: Callable[[int], Any],
        folder: str | os.PathLike[str] | None = None,
        *,
        neighbours: Mapping[str, str] | None = None,
        probe: Callable[[], None] | None = None,
    ) -> None:
        from alpa_dejavu.alpa._devices import computes
        from alpa_dejavu.alpa._training import Training

        self._training = Training(step, state, batch, folder, neighbours or {}, probe or computes)

    @property
    def saves(self) -> bool:
        """Returns whether there is a folder for checkpoints."""
        return self._training.saves

    @property
    def copies(self) -> bool:
        """Returns whether the state can be copied to neighbours' hosts: always."""
        return True

    @property
    def state(self) -> Any:
        """Returns the training state after the steps so far, with Alpa's arrays."""
        return self._training.state

    def start(self, plan: Plan, checkpoint: int | None) -> None:
        """Connects Alpa to a plan's hosts, compiles the step, and restores the state after `checkpoint` steps; None: a
        fresh one. Raises RuntimeError without Ray or the plan's hosts, and ValueError if the plan doesn't fit the step.
        """
        self._training.start(plan, checkpoint)

    def step(self, number: int) -> float:
        """Runs one training step, counted from 0, and returns its loss."""
        return self._training.step(number)

    def noted_step(self, number: int) -> tuple[float, StepNotes]:
        """Runs a step whose instructions are noted, which takes longer; returns its loss, and the notes."""
        return self._training.noted_step(number)

    def pin(self, cores: Sequence[Sequence[int]]) -> None:
        """Has the workers of each stage run on the given CPU cores of their host, until the next start."""
        self._training.pin(cores)

    def save(self, number: int) -> None:
        """Writes a checkpoint of the training state after `number` steps, and then removes older checkpoints."""
        self._training.save(number)

    def copy(self, number: int) -> None:
        """Copies the state after so many steps to hosts' and neighbours' memory; RuntimeError if one has too little."""
        self._training.copy(number)

    def copied(self) -> int | None:
        """Returns after how many steps the newest copy was made, if living hosts have all of it, as it was sent."""
        return self._training.copied()

    def stop(self) -> None:
        """Shuts Alpa down, in whatever state it is; Ray stays."""
        self._training.stop()

    def close(self) -> None:
        """Ends the processes that keep copies, and those that hold broken devices."""
        self._training.close()

    def lost(self) -> Sequence[str]:
        """Returns the names of the hosts whose nodes Ray counts as dead, of those that the first started plan had."""
        return self._training.lost()

    def broken(self) -> Sequence[str] | None:
        """Returns living hosts' broken devices, such as "host-1/3"; None: one doesn't answer. Alpa was stopped."""
        return self._training.broken()

    def joined(self) -> Mapping[str, int]:
        """Returns the hosts that Ray has and that no plan has used yet, with the number of their devices."""
        return self._training.joined()

    def leave_out(self, names: Collection[str]) -> None:
        """Holds devices, such as "host-1/3", so that no worker gets them. Raises ValueError if one isn't free."""
        self._training.leave_out(names)

    def replica_devices(self, replicas: Collection[int]) -> tuple[str, ...]:
        """Returns the devices of some replicas of all stages, such as "host-1/3", as `train(leave_out=...)` takes them.
        Raises RuntimeError if no plan runs, and ValueError if there is no such replica, or all are named.
        """
        return self._training.replica_devices(replicas)

    def suspects(self, error: Exception) -> bool:
        """Returns whether a lost host may be behind an error: whether it comes from Ray, or from a connection."""
        return self._training.suspects(error)

    def interrupt(self) -> None:
        """Ends Alpa's workers, so that a step that hangs raises an error; called from another thread."""
        self._training.interrupt()
