"""What was measured of a case, beside what it was to be."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

__all__ = ["figures", "misses", "table"]

SLOWER_THAN_ALPA, FROM_BEST, TO_WIN = 1.05, 1.10, 1.5
"""At most so many times Alpa's step; at most so many times the best one's; at least so many times as fast as Alpa's."""


def figures(case: Mapping[str, Any]) -> dict[str, float]:
    """Medians of steps, and their ratios.

    Raises:
        RuntimeError: a plan that all is compared with could not be run.
    """
    steps = _medians(case)
    for role, label in case["roles"].items():
        if label not in steps:
            raise RuntimeError(f"{case['name']}: the plan of {role} could not be run: {case['errors'][label]}")
    ours, alpa, amp = (steps[case["roles"][role]] for role in ("ours", "alpa", "amp"))
    listed = {label: steps[label] for label in case["listed"] if label in steps}
    return {
        "ours_s": ours,
        "alpa_s": alpa,
        "amp_s": amp,
        "best_s": min(listed.values()),
        "worst_s": max(listed.values()),
        "median_s": statistics.median(listed.values()),
        "ours_to_alpa": ours / alpa,
        "ours_to_amp": ours / amp,
        "ours_to_best": ours / min(listed.values()),
        "alpa_to_best": alpa / min(listed.values()),
        "alpa_to_ours": alpa / ours,
    }


def misses(case: Mapping[str, Any]) -> list[str]:
    """What isn't as it was to be."""
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


def table(case: Mapping[str, Any]) -> str:
    """A line for each plan, the fastest first."""
    steps, found = _medians(case), figures(case)
    roles: dict[str, list[str]] = {}
    for role, label in case["roles"].items():
        roles.setdefault(label, []).append(role)
    lines = [f"{case['name']}: {case['about']}; {len(case['listed'])} of {case['plans_in_all']} plans"]
    for label in sorted(steps, key=lambda label: steps[label]):
        own = [seconds for turn in case["steps_s"][label] for seconds in turn]
        mark = f"  <- {', '.join(roles[label])}" if label in roles else ""
        lines.append(f"{steps[label]:>8.3f} s  ({min(own):.3f} to {max(own):.3f})  {label}{mark}")
    lines += [f"not run: {label}: {error.splitlines()[-1]}" for label, error in case["errors"].items()]
    lines.append(
        f"ours takes {found['ours_to_alpa']:.2f} times Alpa's step, {found['ours_to_amp']:.2f} times AMP's and "
        f"{found['ours_to_best']:.2f} times the best of the enumeration, which is from {found['best_s']:.3f} to "
        f"{found['worst_s']:.3f} s, median {found['median_s']:.3f}"
    )
    return "\n".join(lines)


def _medians(case: Mapping[str, Any]) -> dict[str, float]:
    return {label: statistics.median([s for turn in turns for s in turn]) for label, turns in case["steps_s"].items()}
