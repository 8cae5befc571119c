"""All sets, in the order in which they are shown."""

from __future__ import annotations

from trials import alpa_stages, amp, collectives, kernels, layer_profiles, sailor_plans, vtrain
from trials._trial_set import TrialSet

_ALL: tuple[TrialSet, ...] = (
    *vtrain.SETS,
    *amp.SETS,
    *sailor_plans.SETS,
    *kernels.SETS,
    *collectives.SETS,
    *layer_profiles.SETS,
    *alpa_stages.SETS,
)

SETS = {each.key: each for each in _ALL}
