"""Experimental: a relaxation of the choices of operators, in place of the integer program that is the default.

It is no better than the default in docs/results/operator-relaxation.md: where both find the optimum the integer program
is faster, and where that has to branch the relaxation is dearer. `ShardingOptions(solver="relaxed")` asks for it.
"""

from __future__ import annotations

from alpa_dejavu.sharding.experimental.relaxed import Relaxed, solve_relaxed

__all__ = ["Relaxed", "solve_relaxed"]
