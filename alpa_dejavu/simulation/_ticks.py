"""The order of tasks: at which tick of Alpa's schedule a stage does what.

Alpa writes a schedule as a table of ticks and stages with at most one task in each cell. For all four schedules the
table has a closed form, which is what stands here. Ticks order the tasks; how long one takes is another matter.

References:
    Alpa 0.2.3, alpa/pipeline_parallel/schedules.py. Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training,
    ICML 2021 (1F1B). Huang et al., GPipe, NeurIPS 2019.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ticks", "ticks"]

Ticks = NDArray[np.int64]


def ticks(schedule: str, num_stages: int, num_micro_batches: int) -> tuple[Ticks, Ticks | None]:
    """Returns at which tick of a pipeline schedule each forward and each backward pass runs, as two arrays of shape
    (S, B).

    Ticks order tasks, at most one for each stage and tick, as Alpa's schedules do; they aren't seconds. The second
    array is None in inference, which has no backward.

    Args:
        schedule: "1f1b", "1f1b_overlap_friendly", "gpipe" or "inference".
        num_stages: the number of stages, S.
        num_micro_batches: the number of micro-batches, B.

    >>> forward, backward = ticks("1f1b", 3, 4)
    >>> forward[0].tolist(), backward[0].tolist()
    ([0, 1, 2, 6], [5, 7, 9, 11])
    """
    stage = np.arange(num_stages)[:, None]
    batch = np.arange(num_micro_batches)[None, :]
    first = stage + batch
    turned = 2 * num_stages - 1 - stage + 2 * batch
    if schedule == "inference":
        return first, None
    if schedule == "gpipe":
        clocks = num_micro_batches + num_stages - 1
        return first, clocks + (num_stages - 1 - stage) + batch
    if schedule == "1f1b":
        return np.where(batch < num_stages - stage, first, stage + 2 * batch), turned
    warm_up = 2 * (num_stages - stage) - 1
    return np.where(batch < warm_up, first, stage + 2 * batch - warm_up + 1), turned
