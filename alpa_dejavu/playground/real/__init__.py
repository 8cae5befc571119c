"""Exchanges of the playground, run by real worker processes, which Ray starts, instead of in virtual time.

In: a job, a cluster whose links are shaped where that is possible, an exchange, faults.
Out: a `History` in seconds of the clock on the wall; before, what a simulation needs to predict it.
"""

from __future__ import annotations

from alpa_dejavu.playground.real._real_workers import RealWorkers, real_workers

__all__ = ["RealWorkers", "real_workers"]
