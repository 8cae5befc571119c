"""Whole iterations: operators and collectives composed into stages, stages into a step, and their peak of memory.

Each framework is a `Physics`: a formula with few parameters that mean something (`frameworks` has them). `fit` finds
them, with the deviations of single programs, from measured iterations; the result predicts with a spread that grows
where nothing was measured.
"""

from alpa_dejavu.costs.iteration._fit import fit
from alpa_dejavu.costs.iteration._fitted import Fitted
from alpa_dejavu.costs.iteration._hierarchical import Deviation, Parameter, Physics
from alpa_dejavu.costs.iteration._risk import MemoryRisk, memory_risk
from alpa_dejavu.costs.iteration._store import load, save

__all__ = ["Deviation", "Fitted", "MemoryRisk", "Parameter", "Physics", "fit", "load", "memory_risk", "save"]
