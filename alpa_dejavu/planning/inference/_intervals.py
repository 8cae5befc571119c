"""The 90 % intervals of both phases, from joint draws of the errors of predictions."""

from __future__ import annotations

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.planning.inference._candidates import Candidate
from alpa_dejavu.planning.inference._phases import PassCosts, decoding_s, prefill_s
from alpa_dejavu.planning.inference._shapes import Shape
from alpa_dejavu.planning.uncertainty.stage_draws import StageDraws, interval

__all__ = ["intervals"]


def intervals(chosen: Candidate) -> tuple[tuple[float, float], tuple[float, float], str]:
    """Returns the 90 % intervals of the seconds to the first token and of each next one, and where they are from.

    Operators, collectives, transfers and reads of memory err as they do in the intervals of training steps.
    """
    passes = chosen.prefill, chosen.decoding
    draws = StageDraws([(one.costs, one.devices, one.config) for one in passes])
    first, following = (_drawn_s(one, draws, n, chosen.shape) for n, one in enumerate(passes))
    first_s = prefill_s(first, chosen.passes)
    following_s = decoding_s(following, chosen.micro_batches)
    return interval(first_s), interval(following_s), draws.source


def _drawn_s(one: PassCosts, draws: StageDraws, number: int, shape: Shape) -> FloatArray:
    """Returns the seconds of a pass in each stage in K draws, shape (K, P)."""
    found = []
    for stage in range(shape.stages):
        on_devices = one.computing_s[stage] + one.collectives_s[stage]
        drawn = on_devices * draws.of_layer(number, stage) + one.cache_s[stage] * draws.of_memory()
        if stage + 1 < shape.stages:
            ends = shape.host_of(stage), shape.host_of(stage + 1)
            drawn = drawn + one.transfers_s[stage] * draws.of_sends(ends)
        found.append(drawn)
    return np.stack(found, axis=-1)
