"""What is run: for each problem its ways, and what is changed of the default settings."""

from __future__ import annotations

import dataclasses
from typing import final

from ahead._problems import Problem
from ahead._ways import Program

JUDGED, TUNING = (0, 1, 2, 3, 4), (1000, 1001)
"""Seeds: those that are judged, and others, by which targets, rates and default settings were chosen."""
TRUST = 4.0
"""The default."""
PLAIN, BATCH, REPEAT, ANDERSON = (Program(kind) for kind in ("plain", "batch", "repeat", "anderson"))
OPTEX = Program("optex")
AS_PAPER = Program("optex", (("applied", "last"),))
RATES = (1.0, 2.0, 4.0)
"""Rates that are tried, over the plain optimizer's."""
ABLATED = ("mlp",)


@final
@dataclasses.dataclass(frozen=True)
class Way:
    """A way to train.

    Attributes:
        name: for people.
        program: by what.
        parallel: gradients of a step.
        trust: of optex.
        rates: of which the best one by `TUNING` is taken, over the plain optimizer's.
    """

    name: str
    program: Program
    parallel: int = 1
    trust: float = TRUST
    rates: tuple[float, ...] = (1.0,)


def ways(problem: Problem) -> list[Way]:
    """Returns the ways for a problem, the plain optimizer first."""
    n = 5 if problem.kind == "function" else 4
    optex = [Way(f"optex, N = {number}", OPTEX, number) for number in (n, 2, 8)]
    batch = [] if problem.kind == "function" else [Way(f"{n} times the batch, rate tuned", BATCH, n, rates=RATES)]
    return [
        Way("plain", PLAIN),
        *optex,
        Way(f"repeats the last gradient, N = {n}", REPEAT, n),
        Way("plain, rate tuned", PLAIN, rates=RATES),
        *batch,
        Way("Anderson acceleration", ANDERSON),
        Way(f"optex, N = {n}, trust = 1", OPTEX, n, 1.0),
        Way(f'optex, N = {n}, applied = "last"', AS_PAPER, n),
    ]


def default_of(problem: Problem) -> str:
    """Returns the name of the way that is judged."""
    return ways(problem)[1].name


def three_of(problem: Problem) -> list[str]:
    """Returns the names of the three settings of which the best one is told apart."""
    return [ways(problem)[1].name, *(way.name for way in ways(problem)[-2:])]


def ablations(problem: Problem) -> list[Way]:
    """Returns the default with one setting changed."""
    n = 5 if problem.kind == "function" else 4
    changes: list[tuple[str, tuple[tuple[str, object], ...]]] = [
        ("history = 8", (("history", 8),)),
        ("history = 50", (("history", 50),)),
        *((f"kernel = {name}", (("kernel", name),)) for name in ("rbf", "matern12", "matern32", "dot-product")),
    ]
    found = [Way(name, Program("optex", settings), n) for name, settings in changes]
    return [*found, Way("trust = infinity", OPTEX, n, float("inf"))]
