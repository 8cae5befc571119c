"""Decides whether to move to another plan: the gain over the steps that are left, against what moving costs."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu._util import units
from alpa_dejavu.plans.difference import stages_text
from alpa_dejavu.problem import Moves, Plan

__all__ = ["Decision"]


@final
@dataclasses.dataclass(frozen=True)
class Decision:
    """A decision whether to move training to another plan, with the figures that it comes from.

    Attributes:
        plan: the best plan by the costs as they are known now; the one that runs if there is no better one.
        now_s: the seconds of a step of the plan that runs, by what was measured.
        step_s: the seconds of a step of `plan`, by what was measured.
        moves: the layers and bytes of training state that hosts take in for `plan`.
        restart_s: the seconds that changing plans costs besides: a checkpoint, compiling, restoring.
        steps_left: how many steps are still to be trained.
        looked_s: the seconds that looking for the plan took.
    """

    plan: Plan
    now_s: float
    step_s: float
    moves: Moves
    restart_s: float
    steps_left: int
    looked_s: float

    @property
    def gain_s(self) -> float:
        """Returns the seconds that moving to the other plan saves over all steps that are left; may be negative."""
        return (self.now_s - self.step_s) * self.steps_left

    @property
    def cost_s(self) -> float:
        """Returns the seconds that moving to the other plan costs: to move the training state, and to start again."""
        return self.moves.seconds + self.restart_s

    @property
    def worth(self) -> bool:
        """Returns whether moving to the other plan saves more seconds than it costs."""
        return self.gain_s > self.cost_s

    def __str__(self) -> str:
        now, then, gain, cost, restart, looked = map(
            units.seconds, (self.now_s, self.step_s, self.gain_s, self.cost_s, self.restart_s, self.looked_s)
        )
        moved = self.moves.text
        return (
            f"{now} a step, {then} by {stages_text(self.plan)}: {gain} gained over {self.steps_left} steps, {cost} "
            f"lost by moving ({moved}, restarted in {restart}): {'move' if self.worth else 'stay'} "
            f"(looked for {looked})"
        )
