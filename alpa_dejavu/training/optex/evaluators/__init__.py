"""Evaluators: where the true gradients of several points are computed; each has one method.

In: points [N, ...], a batch for each, and how many of them matter.
Out: losses and gradients. Alpa's is `alpa_dejavu.alpa.gradients`, as only that room imports Alpa.
"""

from __future__ import annotations

from alpa_dejavu.training.optex.evaluators._base import Evaluated, Evaluator
from alpa_dejavu.training.optex.evaluators._local import OneByOne, Sharded, Vmapped

__all__ = ["Evaluated", "Evaluator", "OneByOne", "Sharded", "Vmapped"]
