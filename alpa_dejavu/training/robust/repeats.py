"""A step in which a stage computes wrongly is run again from the state before it, or dropped.

    before ─▶ step ─▶ the monitor's verdict ─ right ─▶ after
      ▲                     │ wrong, and repeats are left          │ wrong, and none is left
      └─────────────────────┘                                      ▼
                                             parameters as before, the monitor's state after

The driver reads the verdict before it takes what the step made. It is for pipelines, where a verdict of one stage would
have to reach all others within the step; so it works with any plan, and with one replica.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from alpa_dejavu.problem import checks
from alpa_dejavu.training.robust.monitor import Crossed, Watch

if TYPE_CHECKING:
    from jaxtyping import PyTree

__all__ = ["CheckedStep", "checked_step"]

_LOGGER = logging.getLogger(__name__)


class CheckedStep(NamedTuple):
    """The result of a step that was checked, and of its repeats.

    Attributes:
        trained: parameters and all else that a step changes; as before where the step was dropped.
        watch: the monitor's state after the run that was taken, or after the last one.
        wrong: the verdicts of the runs in which a stage was wrong, NumPy arrays, the first one first.
    """

    trained: PyTree
    watch: Watch
    returned: Any
    wrong: tuple[Crossed, ...]
    dropped: bool


def checked_step(
    step: Callable[[PyTree, Watch, PyTree], tuple[PyTree, Watch, Crossed, Any]], trained: PyTree, watch: Watch,
    batch: PyTree, repeats: int = 1, order: Sequence[str] = (),
) -> CheckedStep:  # fmt: skip
    """Returns what a step makes, run again while a stage computes wrongly, or dropped where it goes on to.

    Args:
        step: of what is trained, the monitor's state and a batch; it returns both anew, `Monitor.seen`'s verdict, and
            anything. It must not donate its arguments (under Alpa `donate_argnums=()`), as they are needed again.
        repeats: how often a step is run again before it is dropped.

    Raises:
        ValueError: repeats is negative.
    """
    checks.not_negative("checked step", "repeats", repeats)
    wrong: list[Crossed] = []
    for number in range(repeats + 1):
        after, watched, crossed, returned = step(trained, watch, batch)
        crossed = jax.tree.map(np.asarray, crossed)
        if not np.any(crossed.replicas):
            return CheckedStep(after, watched, returned, tuple(wrong), dropped=False)
        wrong.append(crossed)
        _LOGGER.warning("%s computed wrongly; the step is %s", _who(crossed, order),
                        "run again" if number < repeats else "dropped")  # fmt: skip
    return CheckedStep(trained, watched, returned, tuple(wrong), dropped=True)


def _who(crossed: Crossed, order: Sequence[str]) -> str:
    replicas = np.flatnonzero(crossed.replicas).tolist()
    if not order:
        return f"replicas {replicas}"
    return ", ".join(f"stage {crossed.stages(order)[replica]} of replica {replica}" for replica in replicas)
