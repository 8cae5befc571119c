"""The effort of the exact slicer: how far it searches, and what is too large for it."""

from __future__ import annotations

import dataclasses
from typing import final


@final
@dataclasses.dataclass(frozen=True)
class Effort:
    """The limits on the work of the exact slicer, which cuts layers into stages; work is counted, not timed, so that
    the same problem always gets the same answer.

    Attributes:
        widths: how many partial slicings beam searches keep, on hosts of unlike kinds: one search after the other,
            while there is something to win.
        steps: how often the prices of devices are changed at each bound on the largest stage.
        work: how many partial slicings beam searches make, or what takes as long, at most; a million takes about half a
            second.
        few_sums: a dynamic program of so many sums, on alike hosts, is faster than finding prices of devices.
        few_states: on hosts of unlike kinds nothing is left out, and prices don't pay, with at most so many
            combinations of used devices, last site and next stage.
        most_arcs: no graph of layers and numbers of stages has more arcs: they would take more than about 1.5 GB.
        most_table_bytes: no table of a dynamic program is larger.
        most_entries: where a relaxation's arrays would have more entries, each transfer counts as its cheapest one.
        most_bounds: with more different stage costs than that, close ones are treated together.
        buckets_per_e: the number of intervals to a factor of e in which they then are treated together.
    """

    widths: tuple[int, ...] = (64, 256, 2048)
    steps: int = 60
    work: int = 8_000_000
    few_sums: int = 10_000_000
    few_states: int = 100_000
    most_arcs: int = 15_000_000
    most_table_bytes: int = 2**31
    most_entries: int = 20_000_000
    most_bounds: int = 2_000_000
    buckets_per_e: int = 10_000
