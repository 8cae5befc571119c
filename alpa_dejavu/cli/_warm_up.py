"""Compiles what slicers spend their time on, so that no first plan waits for it: python -m alpa_dejavu.cli._warm_up."""

from __future__ import annotations

import time

# These have all functions that are compiled.
import alpa_dejavu.layers.cluster_search
import alpa_dejavu.simulation.step
import alpa_dejavu.slicing  # noqa: F401
from alpa_dejavu._util import units
from alpa_dejavu._util.compiled import compile_all

__all__ = ["warm_up"]


def warm_up() -> str:
    """Compiles with numba the functions that slicers spend their time in, and returns a line of text that says how many
    and how long it took.
    """
    began = time.perf_counter()
    return f"{compile_all()} inner loops are compiled ({units.seconds(time.perf_counter() - began)})"


if __name__ == "__main__":
    warm_up()
