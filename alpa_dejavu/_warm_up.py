"""Compiles what slicers spend their time on, so that no first plan waits for it: python -m alpa_dejavu._warm_up."""

from __future__ import annotations

import time

# These have all functions that are compiled.
import alpa_dejavu._cluster_search
import alpa_dejavu.relaxation._put_stages
import alpa_dejavu.simulate
import alpa_dejavu.slicing  # noqa: F401
from alpa_dejavu._compiled import compile_all

__all__ = ["warm_up"]


def warm_up() -> str:
    """What it did, in a few words."""
    began = time.perf_counter()
    return f"{compile_all()} inner loops are compiled ({time.perf_counter() - began:.1f} s)"


if __name__ == "__main__":
    warm_up()
