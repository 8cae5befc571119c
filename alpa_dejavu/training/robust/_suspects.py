"""The log of suspicion: who is named a suspect, and who is proposed to be left out."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import checks

__all__ = ["Suspects"]

logger = logging.getLogger(__name__)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Suspects:
    """Who has been suspicious, step by step.

    A replica is named where the moving average of its suspicion, the largest of all groups, is at or above a
    threshold; one that has been named for long without a break is proposed to be left out.

    Attributes:
        replicas: how many there are.
        threshold: how many times the median distance makes a suspect.
        memory: how much of the average stays from step to step.
        patience: for how many steps one is named before it is proposed to be left out.
        average: of each replica, shape [N].
        named_for: for how many steps each has been named, shape [N].
        step: how many steps were looked at.
    """

    replicas: int
    threshold: float = 2.0
    memory: float = 0.5
    patience: int = 50
    average: NDArray[np.float64] | None = None
    named_for: NDArray[np.int64] | None = None
    step: int = 0

    def __post_init__(self) -> None:
        checks.count("suspects", "replicas", self.replicas)
        checks.positive("suspects", "threshold", self.threshold)
        checks.count("suspects", "patience", self.patience)
        if not 0 <= self.memory < 1:
            raise ValueError(f"suspects: memory is {self.memory}, but must be at least 0 and below 1; give a share")

    @property
    def named(self) -> tuple[int, ...]:
        """The replicas that are suspects now."""
        return () if self.named_for is None else tuple(np.flatnonzero(self.named_for > 0).tolist())

    @property
    def left_out(self) -> tuple[int, ...]:
        """The replicas that are proposed to be left out."""
        return () if self.named_for is None else tuple(np.flatnonzero(self.named_for >= self.patience).tolist())

    def seen(self, suspicion: Mapping[str, Any]) -> Suspects:
        """Returns the log after a step, and tells changes by `logging`.

        Args:
            suspicion: for each group each replica's, shape [N], as in `Judged.suspicion`.

        Raises:
            ValueError: it is of another number of replicas.
        """
        each = {group: np.asarray(values, np.float64) for group, values in suspicion.items()}
        for group, values in each.items():
            if values.shape != (self.replicas,):
                raise ValueError(f"suspicion[{group!r}] is of shape {values.shape}, but must be ({self.replicas},); "
                                 "give a value for each replica")  # fmt: skip
        # A replica that isn't finite is infinitely far: a cap, so that it is forgiven some time after it recovered.
        now = np.minimum(np.max(list(each.values()), axis=0), 100 * self.threshold)
        average = now if self.average is None else self.memory * self.average + (1 - self.memory) * now
        before = np.zeros(self.replicas, np.int64) if self.named_for is None else self.named_for
        named_for = np.where(average >= self.threshold, before + 1, 0)
        after = dataclasses.replace(self, average=average, named_for=named_for, step=self.step + 1)
        self._tell(after, each)
        return after

    def _tell(self, after: Suspects, each: Mapping[str, NDArray[np.float64]]) -> None:
        assert after.average is not None, "a step was looked at"
        for replica in sorted(set(after.named) - set(self.named)):
            where = max(each, key=lambda group: each[group][replica])
            logger.warning("step %d: replica %d is a suspect: %.1f times the median distance from the gradient, most "
                           "in %s", self.step, replica, after.average[replica], where)  # fmt: skip
        for replica in sorted(set(after.left_out) - set(self.left_out)):
            logger.warning("step %d: replica %d has been a suspect for %d steps: leave it out; `alpa-dejavu replan "
                           "PLAN.json --without-replica %d` says what that costs", self.step, replica, self.patience,
                           replica)  # fmt: skip
        for replica in sorted(set(self.named) - set(after.named)):
            logger.info("step %d: replica %d is no suspect any more", self.step, replica)
