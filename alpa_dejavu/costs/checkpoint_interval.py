"""How often to keep a training state, so that keeping it and losing steps cost least together."""

from __future__ import annotations

import math

from alpa_dejavu.problem import checks


def best_checkpoint_interval_s(write_s: float, between_s: float) -> float:
    """Returns the seconds of training between two checkpoints that lose least, where they are few beside those between
    failures.

    Args:
        write_s: seconds that a checkpoint takes.
        between_s: mean seconds between two failures of any worker.

    References:
        Young, A First Order Approximation to the Optimum Checkpoint Interval, CACM 17(9), 1974.
        Daly, A Higher Order Estimate of the Optimum Checkpoint Interval for Restart Dumps, FGCS 22(3), 2006.

    >>> best_checkpoint_interval_s(2.0, 3600.0)
    120.0
    """
    checks.not_negative("checkpoints", "write_s", write_s)
    checks.positive("checkpoints", "between_s", between_s)
    return math.sqrt(2 * write_s * between_s)
