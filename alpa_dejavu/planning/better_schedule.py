"""Says beside a plan for Alpa what a schedule that Alpa hasn't would be worth to it."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu._util.ties import least
from alpa_dejavu.planning._annotations import Annotation, Chosen
from alpa_dejavu.planning._schedules import ANY_SCHEDULE, under
from alpa_dejavu.problem import Plan
from alpa_dejavu.problem.run import ALPA_SCHEDULES
from alpa_dejavu.schedules import schedule_kind

__all__ = ["BetterSchedule"]

_WORTH = 0.01


@final
class BetterSchedule(Annotation):
    """An annotation that says what other schedules would be worth to a plan: the best of Alpa's, and of all others."""

    def annotate(self, plan: Plan, chosen: Chosen) -> Plan:
        """Returns the plan with a note on each of the two that would make its step over 1 % shorter."""
        own = chosen.candidates[0]
        if not own.model.training or own.cluster.shared:
            return plan
        others = [one for name in ANY_SCHEDULE if (one := under(own, name)) is not None]
        notes = []
        for of_alpa in (True, False):
            alike = [one for one in others if (one.run.schedule in ALPA_SCHEDULES) == of_alpa]
            best = least(alike, key=lambda one: one.step_s) if alike else own
            saved, name = 1 - best.step_s / own.step_s, best.run.schedule
            if saved >= _WORTH:
                whose = "which Alpa has" if of_alpa else f"which Alpa hasn't, but {_listed(name)}"
                notes.append(
                    f"the schedule {name}, {whose}, would make a step on the same submeshes {100 * saved:.0f} % shorter"
                )
        chosen.clock.lap("schedules")
        return dataclasses.replace(plan, notes=(*plan.notes, *notes))


def _listed(schedule: str) -> str:
    return " and ".join(schedule_kind(schedule).runtimes)
