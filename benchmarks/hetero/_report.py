"""The measurements of a case, beside what they were to be."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from alpa_dejavu._util.units import seconds
from harness import Table

SLOWER_THAN_ALPA, FROM_BEST, TO_WIN = 1.05, 1.10, 1.5
"""At most so many times Alpa's step; at most so many times the best one's; at least so many times as fast as Alpa's."""
FINALISTS = 2
"""So many plans of an enumeration are compared again."""


def finalists(case: Mapping[str, Any]) -> list[str]:
    """The plans whose steps are compared: ours, Alpa's, and those of the enumeration that were fastest so far.

    The fastest of many plans is so by luck, too; that is why it has to run again.
    """
    steps = _medians(case["steps_s"])
    best = sorted((label for label in case["listed"] if label in steps), key=lambda label: steps[label])[:FINALISTS]
    return list(dict.fromkeys((case["roles"]["ours"], case["roles"]["alpa"], *best)))


def figures(case: Mapping[str, Any]) -> dict[str, float]:
    """Medians of steps of the rounds of all plans, and ratios of the finals: medians of what they were in each round.

    Raises:
        RuntimeError: a plan that all is compared with could not be run.
    """
    steps, finals = _medians(case["steps_s"]), _medians(case["finals_s"])
    for role, label in case["roles"].items():
        if label not in steps:
            raise RuntimeError(f"{case['name']}: the plan of {role} could not be run: {case['errors'][label]}")
    ours, alpa, amp = (case["roles"][role] for role in ("ours", "alpa", "amp"))
    best = min((label for label in finals if label in case["listed"]), key=lambda label: finals[label])
    listed = [steps[label] for label in case["listed"] if label in steps]
    return {
        "ours_s": finals[ours],
        "alpa_s": finals[alpa],
        "best_s": finals[best],
        "amp_s": steps[amp],
        "fastest_s": min(listed),
        "worst_s": max(listed),
        "median_s": statistics.median(listed),
        "ours_to_alpa": _ratio(case, ours, alpa),
        "ours_to_amp": steps[ours] / steps[amp],
        "ours_to_best": _ratio(case, ours, best),
        "alpa_to_best": _ratio(case, alpa, best),
        "alpa_to_ours": _ratio(case, alpa, ours),
    }


def misses(case: Mapping[str, Any]) -> list[str]:
    """The aims that weren't met, in words."""
    found, name = figures(case), case["name"]
    said = []
    if found["ours_to_alpa"] > SLOWER_THAN_ALPA:
        said.append(f"{name}: ours takes {found['ours_to_alpa']:.2f} times Alpa's step, at most {SLOWER_THAN_ALPA}")
    if found["ours_to_best"] > FROM_BEST:
        said.append(f"{name}: ours takes {found['ours_to_best']:.2f} times the best one's step, at most {FROM_BEST}")
    if case["to_win"] and found["alpa_to_best"] >= TO_WIN > found["alpa_to_ours"]:
        said.append(f"{name}: ours is {found['alpa_to_ours']:.2f} times as fast as Alpa's, at least {TO_WIN} is there")
    if case["to_win"] and max(found["alpa_to_best"], found["alpa_to_ours"]) < TO_WIN:
        said.append(f"{name}: no plan is {TO_WIN} times as fast as Alpa's, so the case shows nothing")
    return said


def cases_table(cases: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row for each case that was measured as a whole."""
    columns = {
        "case": "{about}",
        "Alpa's": "{figures[alpa_s]:seconds}",
        "ours": "{figures[ours_s]:seconds}",
        "best": "{figures[best_s]:seconds}",
        "Alpa's/ours": "{figures[alpa_to_ours]:.2f}",
        "ours/best": "{figures[ours_to_best]:.2f}",
        "AMP's/ours": lambda case: f"{1 / case['figures']['ours_to_amp']:.2f}",
        "enumeration": lambda case: (
            ", ".join(seconds(case["figures"][name]) for name in ("fastest_s", "median_s", "worst_s"))
            + f" ({len(case['listed'])} of {case['plans_in_all']})"
        ),
    }
    return Table.of([case for case in cases.values() if "figures" in case], columns)


def _ratio(case: Mapping[str, Any], one: str, other: str) -> float:
    """The ratio of two plans' steps in the finals."""
    rounds = zip(case["finals_s"][one], case["finals_s"][other], strict=True)
    return statistics.median(statistics.median(mine) / statistics.median(its) for mine, its in rounds)


def _medians(steps_s: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, float]:
    return {label: statistics.median([s for turn in turns for s in turn]) for label, turns in steps_s.items()}
