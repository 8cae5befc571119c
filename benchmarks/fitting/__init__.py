"""Bayesian fits of few parameters that mean something, with what programs alike are off, and a spread.

A `Physics` is a formula of parameters and columns. `fit` finds the parameters, with the deviations of single programs,
from measurements; the result predicts with a spread that grows where nothing was measured.
"""

from fitting._fit import fit
from fitting._fitted import Fitted
from fitting._physics import Array, Deviation, Parameter, Physics, Rows

__all__ = ["Array", "Deviation", "Fitted", "Parameter", "Physics", "Rows", "fit"]
