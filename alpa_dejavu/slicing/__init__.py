"""Cutting layers into stages and giving each its devices: slicers of one method, chosen by name."""

from __future__ import annotations

from alpa_dejavu._named import resolve
from alpa_dejavu.slicing._amp_pipe import AmpPipe
from alpa_dejavu.slicing._base import Slicer
from alpa_dejavu.slicing._dynamic import Dynamic
from alpa_dejavu.slicing._exhaustive import Exhaustive
from alpa_dejavu.slicing._placed import Effort
from alpa_dejavu.slicing._uniform import Uniform

__all__ = ["AmpPipe", "Dynamic", "Effort", "Exhaustive", "Slicer", "Uniform", "slicer"]


def slicer(choice: str | Slicer) -> Slicer:
    """The slicer of a name ("amp_pipe", "dynamic", "exhaustive", "uniform"), or the given one.

    >>> slicer("dynamic")
    Dynamic()
    """
    known: dict[str, type[Slicer]] = {
        "amp_pipe": AmpPipe, "dynamic": Dynamic, "exhaustive": Exhaustive, "uniform": Uniform,
    }  # fmt: skip
    return resolve("slicer", choice, known, Slicer)  # type: ignore[type-abstract]
