"""The slicers, which cut layers into stages and give each its devices; each has one method, and is chosen by name.

In: a `SlicingProblem`, the cost of every range of layers on every submesh and what a plan must keep to.
Out: a `Slicing`, the stages with their cost, and how far from optimal it may be.
`relaxation/` is what the gradient-based slicer goes by, `experimental/` what isn't better than the default.
"""

from __future__ import annotations

from alpa_dejavu._util.by_name import name_of, resolve
from alpa_dejavu.slicing._base import Effort, Slicer
from alpa_dejavu.slicing._baselines import Exhaustive, Uniform
from alpa_dejavu.slicing._dynamic import Dynamic
from alpa_dejavu.slicing._gradient import Gradient
from alpa_dejavu.slicing.amp_pipe import AmpPipe
from alpa_dejavu.slicing.experimental import Mcmc

__all__ = [
    "EXPERIMENTAL", "SLICERS", "AmpPipe", "Dynamic", "Effort", "Exhaustive", "Gradient", "Mcmc", "Slicer", "Uniform",
    "slicer", "slicer_name",
]  # fmt: skip

SLICERS: dict[str, type[Slicer]] = {
    "amp_pipe": AmpPipe,
    "dynamic": Dynamic,
    "exhaustive": Exhaustive,
    "gradient": Gradient,
    "mcmc": Mcmc,
    "uniform": Uniform,
}
"""All of them, by the names that options and the command line take."""

EXPERIMENTAL = ("gradient", "mcmc")
"""Slicers that are no better than `dynamic`, the default, in docs/results/slicers.md: by the default objective that one
is exact, and faster. By a simulated step `gradient` has found better plans than the default objective's."""


def slicer(choice: str | Slicer) -> Slicer:
    """Returns the slicer that has a name in `SLICERS`, or the given slicer itself.

    Raises:
        ValueError: there is no slicer of that name; the message lists the names.
        TypeError: the choice is neither a name nor a slicer.

    >>> slicer("dynamic")
    Dynamic()
    """
    return resolve("slicer", choice, SLICERS, Slicer)  # type: ignore[type-abstract]


def slicer_name(choice: str | Slicer) -> str:
    """Returns the name by which `slicer` finds a slicer, or the name of its class if it isn't in `SLICERS`.

    >>> slicer_name(Dynamic())
    'dynamic'
    """
    return name_of(slicer(choice), SLICERS)
