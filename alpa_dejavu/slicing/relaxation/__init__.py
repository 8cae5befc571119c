"""Plans as probabilities: what `alpa_dejavu.slicing.Gradient` relaxes, anneals, recovers and polishes.

JAX is imported where something is relaxed; `alpa_dejavu.slicing.relaxation.pipeline` has costs that it differentiates.
"""

from __future__ import annotations

from alpa_dejavu.slicing.relaxation._plan import Cost, RelaxedPlan

__all__ = ["Cost", "RelaxedPlan"]
