"""Results of a part of the benchmark, and how much of it is run."""

from __future__ import annotations

import dataclasses
from typing import Any, final

from harness import Figure


@final
@dataclasses.dataclass(frozen=True)
class Part:
    """Some figures, and what they come from, as JSON has it."""

    figures: tuple[Figure, ...]
    details: dict[str, Any]


@final
@dataclasses.dataclass(frozen=True)
class Scale:
    """How much is run.

    Attributes:
        random: small tables at random, with all their slicings, and as many against Alpa's programs.
        real: tables of models.
        against_alpa: names of `SIZED` that Alpa's programs get.
        alone: names of `SIZED` that `dynamic` gets alone.
        patience_s: when Alpa's first program is stopped.
        relaxed: problems that `gradient` solves with the DP's objective.
        large: the name in `SIZED` of the problem whose time `gradient` is measured on.
        makespans: problems with the simulated objective.
        sketch: layers and stages of the sketch's problem.
        sketch_patience_s: when its own program is stopped.
    """

    random: int = 500
    real: int = 40
    against_alpa: tuple[str, ...] = ("16/64", "32/64", "48/128")
    alone: tuple[str, ...] = ("64/512", "64/512 noisy", "256/4096")
    patience_s: float = 600.0
    relaxed: int = 200
    large: str = "64/512"
    makespans: int = 24
    sketch: tuple[tuple[int, int], ...] = (
        (12, 4), (24, 12), (36, 8), (36, 12), (48, 12), (48, 24), (64, 12), (64, 16), (128, 12), (128, 32),
    )  # fmt: skip
    sketch_patience_s: float = 120.0


QUICK = Scale(
    random=10, real=1, against_alpa=("8/8",), alone=("8/8",), patience_s=20.0, relaxed=4, large="16/64",
    makespans=2, sketch=((12, 4), (24, 12)), sketch_patience_s=10.0,
)  # fmt: skip
"""To see that all of it runs; its figures say nothing."""
