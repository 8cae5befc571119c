"""Checks what a run of `parallel_initialize` is asked for, before anything is trained."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence

from alpa_dejavu.training.initialization.rules import Rule
from alpa_dejavu.training.initialization.starts import Start


def check_numbers(
    num_candidates: int, budget_steps: int, lanes: int, checkpoint_steps: int, seed: int, workers: int | None,
    batch_rows: Sequence[int],
) -> None:  # fmt: skip
    """Raises ValueError unless a run's numbers are whole ones of at least 1, and its seed of at least 0."""
    given = {"num_candidates": num_candidates, "budget_steps": budget_steps, "lanes": lanes,
             "checkpoint_steps": checkpoint_steps, **({} if workers is None else {"workers": workers})}  # fmt: skip
    given.update({f"batch_rows[{n}]": rows for n, rows in enumerate(batch_rows)})
    for name, value in given.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"parallel_initialize: {name} is {value!r}, but must be a whole number of at least 1")
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"parallel_initialize: seed is {seed!r}, but must be a whole number of at least 0")


def check_rates(rates: Sequence[float]) -> None:
    """Raises ValueError unless all learning rates are positive numbers."""
    for place, rate in enumerate(rates):
        if not isinstance(rate, (int, float)) or not 0 < rate < math.inf:
            raise ValueError(f"parallel_initialize: rates[{place}] is {rate!r}, but must be a number above 0")


def check_waits(rule: Rule, start: Start) -> None:
    """Raises ValueError if a start learns from earlier candidates and the rule doesn't wait for them."""
    if not rule.waits and len(start.waves) > 1:
        raise ValueError(
            f"{type(start).__name__} learns from earlier candidates, and {type(rule).__name__} "
            "doesn't wait for them; take a rule that waits, such as 'halving'"
        )


def checked_save(save: str | pathlib.Path | None) -> pathlib.Path | None:
    """Returns the path of the file for the result; raises ValueError if its folder isn't there."""
    path = None if save is None else pathlib.Path(save)
    if path is not None and not path.absolute().parent.is_dir():
        raise ValueError(f"save is {path}, but there is no folder {path.absolute().parent}; make it first")
    return path
