"""Experimental: a slicer that is no better than the default one, `dynamic`, in docs/results/slicers.md."""

from __future__ import annotations

from alpa_dejavu.slicing.experimental.mcmc import Mcmc

__all__ = ["Mcmc"]
