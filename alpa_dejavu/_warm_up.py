"""Compiles what planning slices with, so that no first plan waits for it: python -m alpa_dejavu._warm_up."""

from __future__ import annotations

import time

import numpy as np

from alpa_dejavu.problem import SlicingProblem
from alpa_dejavu.slicing import slicer

__all__ = ["warm_up"]


def warm_up() -> str:
    """What it did, in a few words."""
    began = time.perf_counter()
    costs_s = np.full((3, 3, 2, 1), np.inf)
    costs_s[np.triu_indices(3)] = [[2.0], [1.0]]
    problem = SlicingProblem(costs_s, np.array([1, 2]), 4, 2)
    for name in ("dynamic", "amp_pipe"):
        slicer(name).slice(problem)
    return f"its inner loops are compiled ({time.perf_counter() - began:.1f} s)"


if __name__ == "__main__":
    warm_up()
