"""The normal distribution, where intervals are told by it."""

from __future__ import annotations

REACH_90 = 1.6449
"""Standard deviations on each side of the middle that hold 90 % of a normal distribution."""
