"""Training that survives wrong gradients: each replica's gradient by itself, and a rule that makes one of them.

    batch ─▶ each replica's gradient [N, ...] ─▶ (momentum, mixing, clipping) ─▶ rule ─▶ one gradient, suspects

`robust_value_and_grad` stands in a train step where `jax.value_and_grad` or Alpa's stood. `rules` puts gradients into
one, `before` prepares them, `attacks` has what wrong replicas send, `monitor` watches what crosses between stages,
`repeats` runs a step again in which one was wrong, `testing` has the conformance suites. All is pure JAX; what needs
Alpa is passed in. See docs/concepts/robust-training.md.
"""

from __future__ import annotations

from alpa_dejavu.training.robust._suspects import Suspects
from alpa_dejavu.training.robust._value_and_grad import Judged, RobustState, RobustValueAndGrad, robust_value_and_grad
from alpa_dejavu.training.robust.rules import RULES, Aggregated, Evidence, Prepared, Rule, replicas_to_tolerate, rule

__all__ = [
    "RULES", "Aggregated", "Evidence", "Judged", "Prepared", "RobustState", "RobustValueAndGrad", "Rule", "Suspects",
    "replicas_to_tolerate", "robust_value_and_grad", "rule",
]  # fmt: skip
