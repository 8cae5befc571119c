"""The facts that `alpa-dejavu profile` prints of hosts that are slow."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from alpa_dejavu._util import units
from alpa_dejavu.problem import Plan

if TYPE_CHECKING:
    from alpa_dejavu.planning.changed.straggler import Straggler

_LEAST_STEPS = 5


def straggler_facts(path: pathlib.Path, plan: Plan, steps_s: Sequence[Sequence[float]]) -> list[tuple[str, str]]:
    """Returns texts, each with its name, that say which hosts of a measured run are slow (stragglers) and, if it can be
    planned again, which plan would now be chosen.

    There are none if too little was measured: fewer than five steps, or a stage that seems to compute nothing.

    Args:
        path: the path of the plan's file.
        plan: the plan, as it is predicted on the cluster that it ran on.
        steps_s: the seconds that each of S stages computed in each step, shape (steps, S).
    """
    from alpa_dejavu.planning.changed.straggler import stragglers

    if len(steps_s) < _LEAST_STEPS or min(map(min, steps_s)) <= 0:
        return []
    found = stragglers(plan, steps_s, least_steps=_LEAST_STEPS)
    return [*(("straggler", str(one)) for one in found), *(_around(path, plan, found) if found else [])]


def _around(path: pathlib.Path, plan: Plan, found: Sequence[Straggler]) -> list[tuple[str, str]]:
    from alpa_dejavu.planning.changed.kept import kept_path, read_kept
    from alpa_dejavu.planning.changed.straggler import planned_around
    from alpa_dejavu.problem import NoPlanError

    if not kept_path(path).exists():
        return []
    options = " ".join(f"--slow {host}={one.factor:.2f}" for one in found for host in one.hosts)
    try:
        made = planned_around(plan, read_kept(path), found)
    except (NoPlanError, ValueError) as error:
        return [("planned around it", f"no: {error}")]
    moved = f"after {made.moves.text}"
    what = f"{units.seconds(made.plan.step_s)} a step, {moved}: alpa-dejavu replan {path} {options}"
    return [("planned around it", what)]
