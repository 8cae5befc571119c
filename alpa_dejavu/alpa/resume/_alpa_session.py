"""Training by Alpa on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, final

from alpa_dejavu.alpa.resume._session import Session
from alpa_dejavu.calibration.measurement import StepNotes
from alpa_dejavu.problem import Plan


@final
class AlpaSession(Session):
    """Trains with Alpa's pipelines and distributed checkpoints, on the Ray cluster that this program is connected to.

    The hosts of the plan are those of the cluster in Alpa's order: that of `contingencies`, if the plan has any. The
    last checkpoint stays in the folder.

    Args:
        step: from a state and a batch to the next state and the loss; gradients by jax or by Alpa.
        state: makes the first state. It must make the same one each time.
        batch: from the number of a step to its batch. It must make the same one each time.
        folder: of the checkpoints; all hosts must have it, at the same path.
    """

    def __init__(
        self,
        step: Callable[[Any, Any], tuple[Any, Any]],
        state: Callable[[], Any],
        batch: Callable[[int], Any],
        folder: str | os.PathLike[str],
    ) -> None:
        from alpa_dejavu.alpa._training import Training

        self._training = Training(step, state, batch, folder)

    @property
    def state(self) -> Any:
        """The state after the steps so far; Alpa's arrays."""
        return self._training.state

    def start(self, plan: Plan, checkpoint: int | None) -> None:
        """See `Session`.

        Raises:
            RuntimeError: the program isn't connected to Ray, or the cluster hasn't the plan's hosts.
            ValueError: the plan doesn't fit the step.
        """
        self._training.start(plan, checkpoint)

    def step(self, number: int) -> float:
        """See `Session`."""
        return self._training.step(number)

    def noted_step(self, number: int) -> tuple[float, StepNotes]:
        """Runs a step with each instruction noted; returns its loss, and what each stage did when.

        It takes longer than a step of which nothing is noted: each computation is waited for.
        """
        return self._training.noted_step(number)

    def pin(self, cores: Sequence[Sequence[int]]) -> None:
        """Has the workers of each stage run on these cores of their host alone, until the next start."""
        self._training.pin(cores)

    def save(self, number: int) -> None:
        """See `Session`; older checkpoints are removed once it is complete."""
        self._training.save(number)

    def stop(self) -> None:
        """See `Session`: Alpa is shut down, Ray stays."""
        self._training.stop()

    def lost(self) -> Sequence[str]:
        """See `Session`: Ray counts the nodes as dead."""
        return self._training.lost()

    def suspects(self, error: Exception) -> bool:
        """See `Session`: an error of Ray, or of a connection."""
        return self._training.suspects(error)

    def interrupt(self) -> None:
        """See `Session`: Alpa's workers are ended."""
        self._training.interrupt()
