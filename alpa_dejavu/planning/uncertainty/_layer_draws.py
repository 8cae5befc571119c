"""The seconds of a plan's stages and layers in the very draws in which its step is drawn."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.planning.uncertainty._errors import Errors, entry_seconds, layer_seconds
from alpa_dejavu.planning.uncertainty._steps import resolved_stage
from alpa_dejavu.problem import DrawnSeconds, StagePlan

if TYPE_CHECKING:
    from alpa_dejavu.planning._candidate import Candidate
    from alpa_dejavu.planning.uncertainty._errors import Factors
    from alpa_dejavu.planning.uncertainty._resolved import Resolver

__all__ = ["drawn_stages", "layer_draws"]


def layer_draws(candidate: Candidate, resolver: Resolver, errors: Errors, factors: Factors) -> list[FloatArray]:
    """Returns for each stage of a candidate plan the seconds of a micro-batch (forward and backward, with collectives)
    in each of its layers, in each of K joint draws: each of shape (K, layers of the stage).

    A draw's seconds of a stage are the sum over its layers, and the same draw has the step of `step_draws`. With all
    errors at their mean a stage takes what its cost table says.

    Args:
        candidate: the plan.
        resolver: the object that has numbered the prediction errors.
        errors: the distribution of these errors.
        factors: the draws from it.
    """
    middle, table, found = errors.middle, candidate.table, []
    for stage in candidate.stages:
        resolved = resolved_stage(candidate, stage, resolver)
        place = resolved.micro_batch, resolved, stage.first, stage.last
        now = float(entry_seconds(*place, middle)[0])
        predicted = float(table.compute_s[stage.entry] + table.collective_s[stage.entry])
        found.append(layer_seconds(*place, factors) * (predicted / now if now > 0 else 1.0))
    return found


def drawn_stages(
    stages: tuple[StagePlan, ...], draws: list[FloatArray], factor: float = 1.0
) -> tuple[StagePlan, ...]:
    """Returns a plan's stages with the mean and the deviation of their seconds, and of their layers', over joint draws
    (`layer_draws`), all multiplied by a factor.
    """
    found = []
    for stage, drawn_s in zip(stages, draws, strict=True):
        layers = tuple(map(_drawn, (factor * drawn_s).T))
        whole = _drawn(factor * drawn_s.sum(axis=1))
        drawn = DrawnSeconds(whole.mean_s, whole.deviation_s, layers)
        found.append(dataclasses.replace(stage, drawn=drawn))
    return tuple(found)


def _drawn(drawn_s: FloatArray) -> DrawnSeconds:
    return DrawnSeconds(float(np.mean(drawn_s)), float(np.std(drawn_s)))
