"""OptEx: several steps of an optimizer for one, by gradients that are evaluated side by side.

    history ─▶ kernel ─▶ walk ahead on estimates [N] ─▶ evaluator: true gradients [N] ─▶ apply, keep ─▶ history

`optex` makes it around any optax optimizer. `kernels` say how alike gradients are, `scales` choose length scale and
noise, `evaluators` compute true gradients: on a device, over devices, on Ray workers; `testing` has the conformance
suites. What needs Alpa is passed in. See docs/concepts/optex.md.
"""

from __future__ import annotations

from alpa_dejavu.training.optex._optex import OptEx, optex
from alpa_dejavu.training.optex._walk import OptExState, StepReport, Walk

__all__ = ["OptEx", "OptExState", "StepReport", "Walk", "optex"]
