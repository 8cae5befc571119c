"""Compares what a cluster's devices can be spent on: larger batches, more starts, or steps side by side (OptEx).

In: a model, a cluster, the batch of a step, and a number of seconds.
Out: a `Spending`: for each way the seconds of a step by the planner, and by a short trial on this machine the steps to
the same loss. See docs/guides/spend.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_dejavu._util.lazy import loaded_when_used

if TYPE_CHECKING:
    from alpa_dejavu.playground.spend._costs import Way, ways
    from alpa_dejavu.playground.spend._gains import Gain, Trial, gains
    from alpa_dejavu.playground.spend._spend import Spending, SpendRow, spend
    from alpa_dejavu.playground.spend._trial_model import TrialModel, stand_in, trial_model

__all__ = [
    "Gain", "SpendRow", "Spending", "Trial", "TrialModel", "Way", "gains", "spend", "stand_in", "trial_model", "ways",
]  # fmt: skip

_HOME = {
    **dict.fromkeys(("Gain", "Trial", "gains"), "_gains"),
    **dict.fromkeys(("TrialModel", "trial_model", "stand_in"), "_trial_model"),
    **dict.fromkeys(("SpendRow", "Spending", "spend"), "_spend"),
    **dict.fromkeys(("Way", "ways"), "_costs"),
}

__getattr__, __dir__ = loaded_when_used(__name__, _HOME)
