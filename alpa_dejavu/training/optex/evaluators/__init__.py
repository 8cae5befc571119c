"""Evaluators: where the true gradients of several points are computed; each has one method.

In: points [N, ...], a batch for each, and how many of them matter.
Out: losses and gradients. Alpa's is `alpa_dejavu.alpa.side_by_side.AlpaGradients`.
"""

from __future__ import annotations

from alpa_dejavu.training.optex.evaluators._local import Evaluated, Evaluator, OneByOne, Sharded, Vmapped
from alpa_dejavu.training.optex.evaluators._ray import RayWorkers

__all__ = ["Evaluated", "Evaluator", "OneByOne", "RayWorkers", "Sharded", "Vmapped"]
