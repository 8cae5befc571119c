"""Choices that change what is learned, made while training goes on: the exchange, its settings, the local batch.

In: a job, a cluster, and rows of choices.
Out: a `Configured`: losses over virtual seconds, each option's share over the steps, and the option that is left.
Options begin with equal shares, a softmax of a matrix; shares follow the held-out loss after a step and its seconds.
See docs/concepts/playground-workers.md.
"""

from __future__ import annotations

from alpa_dejavu.playground.choices._configure import Configured, configure_while_training, look_ahead_gradient
from alpa_dejavu.playground.choices._options import Choice, Mixing, Option, options, planned_seconds

__all__ = [
    "Choice", "Configured", "Mixing", "Option", "configure_while_training", "look_ahead_gradient", "options",
    "planned_seconds",
]  # fmt: skip
