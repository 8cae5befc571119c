"""Parallel random initialization: start many, keep the promising, train the best one on.

    starts ─▶ race: train to a rung ─▶ trend ─▶ judge ─▶ rule ─▶ ... ─▶ means ─▶ the best is trained on

Where gradient descent ends, and how soon, depends on where it starts. Workers that would all hold the same start can
each try other ones instead: `parallel_initialize` does that for any flax or plain jax model. `starts` says where
candidates begin, `rules` who goes on, a `Judge` by what. Nothing here imports jax, Ray or Optuna before it needs it.

References:
    Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016.
"""

from __future__ import annotations

from alpa_dejavu.training.initialization._initialize import parallel_initialize
from alpa_dejavu.training.initialization._judge import Judge, LastLoss, Measure, Trend, judge, measured
from alpa_dejavu.training.initialization._run import Progress
from alpa_dejavu.training.initialization.result_file import Curve, Initialized, read_result, write_result

__all__ = [
    "Curve", "Initialized", "Judge", "LastLoss", "Measure", "Progress", "Trend", "judge", "measured",
    "parallel_initialize", "read_result", "write_result",
]  # fmt: skip
