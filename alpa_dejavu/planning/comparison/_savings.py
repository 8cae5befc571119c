"""The ways by which stages may keep less in memory, each as the options of `alpa-dejavu plan` that allow it."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.problem import Plan

__all__ = ["SAVINGS", "Saving", "used_savings"]


@final
@dataclasses.dataclass(frozen=True)
class Saving:
    """A way by which stages may keep less in memory; a plan goes it only in stages where that pays.

    Attributes:
        name: its name.
        remat, zero, offload: the choices that stages have, as `alpa_dejavu.planning.plan_model` takes them.
    """

    name: str
    remat: tuple[str, ...] = ("none", "layer")
    zero: tuple[int, ...] = (0, 2, 3)
    offload: str = "none"

    @property
    def flags(self) -> str:
        """Returns the options of `alpa-dejavu plan` that allow it, and no other way.

        >>> Saving("none", remat=("none",), zero=(0,)).flags
        '--remat none --zero 0'
        """
        remat = [f"--remat {self.remat[0]}"] if len(self.remat) == 1 else []
        zero = [f"--zero {self.zero[0]}"] if len(self.zero) == 1 else []
        return " ".join([*remat, *zero, *([] if self.offload == "none" else [f"--offload {self.offload}"])])


SAVINGS = (
    Saving("none", remat=("none",), zero=(0,)),
    Saving("remat", zero=(0,)),
    Saving("ZeRO", remat=("none",)),
    Saving("offload", remat=("none",), zero=(0,), offload="auto"),
    Saving("remat+ZeRO"),
)
"""No saving; each alone; and the two among which `plan` chooses by itself."""


def used_savings(plan: Plan) -> tuple[str, ...]:
    """Returns what a plan's stages do to keep less, each once."""
    stages = plan.stages
    zero = [f"ZeRO-{level}" for level in sorted({stage.zero for stage in stages} - {0})]
    remat = ["remat"] if any(stage.remat != "none" for stage in stages) else []
    return (*remat, *zero, *(["offload"] if any(stage.offloaded.any for stage in stages) else []))
