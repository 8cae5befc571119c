"""All sets, in the order in which they are shown."""

from __future__ import annotations

from trials import amp, collectives, sailor_plans, vtrain
from trials._trial_set import TrialSet

_ALL: tuple[TrialSet, ...] = (*vtrain.SETS, *amp.SETS, *sailor_plans.SETS, *collectives.SETS)

SETS = {each.key: each for each in _ALL}
