"""All sets, in the order in which they are shown."""

from __future__ import annotations

from trials import amp, kernels, vtrain
from trials._trial_set import TrialSet

_ALL: tuple[TrialSet, ...] = (*vtrain.SETS, *amp.SETS, *kernels.SETS)

SETS = {each.key: each for each in _ALL}
