"""Compiles what slicers spend their time on, so that no first plan waits for it: python -m alpa_dejavu.cli._warm_up."""

from __future__ import annotations

import math
import time

# These have all functions that are compiled.
import alpa_dejavu.layers.cluster_search
import alpa_dejavu.simulation.step
import alpa_dejavu.slicing  # noqa: F401
from alpa_dejavu._util import units
from alpa_dejavu._util.compiled import compile_all


def warm_up(within_s: float = math.inf) -> str:
    """Compiles slicers' inner loops, none begun after `within_s` seconds, and returns a line on how many."""
    began = time.perf_counter()
    done, count = compile_all(within_s)
    if done < count:
        return f"{done} of {count} inner loops are compiled; the first plan compiles the others, or `doctor --compile`"
    return f"{count} inner loops are compiled ({units.seconds(time.perf_counter() - began)})"


if __name__ == "__main__":
    warm_up()
