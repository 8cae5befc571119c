"""The steps of candidate plans, and the seconds of their stages, in joint draws of prediction errors."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.costs.stage_costs import StageCostModel
from alpa_dejavu.costs.stage_devices import StageDevices
from alpa_dejavu.planning.search._candidate import Candidate
from alpa_dejavu.planning.search.uncertainty._errors import Errors, Factors, entry_seconds, layer_seconds
from alpa_dejavu.planning.search.uncertainty._resolved import Resolved, Resolver
from alpa_dejavu.planning.search.uncertainty._spreads import COMPUTE, link_class
from alpa_dejavu.problem import DrawnSeconds, MeshConfig, Run, StageChoice, StagePlan

__all__ = [
    "DRAWS", "StageDraws", "closed_form", "drawn_stages", "interval", "layer_draws", "meet_plan", "resolved_stage",
    "step_draws",
]  # fmt: skip

DRAWS = 200
_ENDS = (0.05, 0.95)


def step_draws(candidates: Sequence[Candidate], errors: Errors, factors: Factors) -> FloatArray:
    """Returns the seconds of each candidate plan's step in each of K joint draws of prediction errors, shape (K,
    candidates).

    In each draw the step is computed by Alpa's closed form. If the candidate was simulated, that is multiplied by the
    ratio of its simulated step to the closed form with all errors at their mean. The resolver of the errors has met the
    plans.
    """
    middle, steps_s = errors.middle, np.zeros((len(factors), len(candidates)))
    for n, candidate in enumerate(candidates):
        drawn, (now,) = (_step_s(candidate, errors.resolver, draws) for draws in (factors, middle))
        steps_s[:, n] = drawn * (1.0 if candidate.simulated_s is None else candidate.step_s / now)
    return steps_s


def closed_form(
    micro_batch_s: FloatArray, boundary_s: FloatArray, once_s: FloatArray, run: Run, shares: FloatArray | None = None
) -> FloatArray:
    """Returns a step's seconds by Alpa's formula in each of K draws, from those of its submeshes, shape (K, submeshes).

    Under a schedule with a smaller bubble than 1F1B's, what fills the pipeline counts by that share.

    Args:
        micro_batch_s: seconds of forward and backward of one micro-batch, in all stages of a submesh.
        boundary_s: seconds of one micro-batch's interstage transfers.
        once_s: seconds of what comes once a step, such as the optimizer.
        run: the number of micro-batches, and the schedule.
        shares: where all devices share a CPU, each stage's share of it: a step is then as long as the work of all.

    >>> one = np.ones((1, 2))
    >>> closed_form(one, 0 * one, 0.5 * one, Run(3)), closed_form(one, one, one, Run(3), np.array([0.5, 0.5]))
    (array([5.]), array([8.]))
    """
    costs, bubble = micro_batch_s + boundary_s, run.form.bubble
    if shares is not None:
        work = run.num_micro_batches * (costs * shares).sum(axis=1)
        return np.asarray(work + (once_s * shares + boundary_s * (1 - shares)).sum(axis=1))
    longest = (run.num_micro_batches - bubble) * costs.max(axis=1)
    return np.asarray(bubble * costs.sum(axis=1) + longest + once_s.sum(axis=1))


def resolved_stage(candidate: Candidate, stage: StageChoice, resolver: Resolver) -> Resolved:
    """Returns the predicted seconds of all stages on the submesh and config of a candidate plan's stage, in parts."""
    table = candidate.table
    assert table.stage_costs is not None, "a table that was priced keeps its prices"
    return resolver.resolved(table.stage_costs, table.devices[stage.submesh], candidate.space.config(stage))


def meet_plan(candidate: Candidate, resolver: Resolver) -> None:
    """Has a resolver number the prediction errors of a candidate plan's stages and interstage transfers."""
    table, space = candidate.table, candidate.space
    if table.stage_costs is not None:
        table.stage_costs.prepare((table.devices[stage.submesh], space.config(stage)) for stage in candidate.stages)
    for stage in candidate.stages:
        resolved_stage(candidate, stage, resolver)
    if candidate.table.interstage is not None:
        for before, stage in itertools.pairwise(candidate.stages):
            resolver.sent(candidate.table, int(candidate.table.interstage.links[before.submesh, stage.submesh]))


def _step_s(candidate: Candidate, resolver: Resolver, factors: Factors) -> FloatArray:
    stages, cluster = candidate.stages, candidate.cluster
    parts = np.zeros((3, len(factors), len(stages)))
    for n, stage in enumerate(stages):
        resolved = resolved_stage(candidate, stage, resolver)
        for kind, seconds in ((0, resolved.micro_batch), (2, resolved.step)):
            parts[kind, :, n] = entry_seconds(seconds, resolved, stage.first, stage.last, factors)
    submesh_of, between = np.array(candidate.submesh_of), candidate.table.interstage
    for n, (before, stage) in enumerate(itertools.pairwise(stages), 1):
        if submesh_of[n - 1] != submesh_of[n] and between is not None:
            ahead, back = between.seconds(stage.first, before.submesh, stage.submesh)
            number = resolver.sent(candidate.table, int(between.links[before.submesh, stage.submesh]))
            parts[1, :, n] = (ahead + back) * factors.common[:, number]
    submeshes = candidate.slicing.stages
    if candidate.chunks:
        parts = np.stack([parts[..., submesh_of == n].sum(axis=-1) for n in range(len(submeshes))], axis=-1)
    sizes = np.array([candidate.space.submeshes[stage.submesh].num_devices for stage in submeshes])
    shares = sizes / cluster.num_devices if cluster.shared else None
    return closed_form(parts[0], parts[1], parts[2], candidate.run, shares)


def layer_draws(candidate: Candidate, errors: Errors, factors: Factors) -> list[FloatArray]:
    """Returns for each stage of a candidate plan the seconds of a micro-batch (forward and backward, with collectives)
    in each of its layers, in each of K joint draws: each of shape (K, layers of the stage).

    A draw's seconds of a stage are the sum over its layers, and the same draw has the step of `step_draws`. With all
    errors at their mean a stage takes what its cost table says.
    """
    middle, table, draws = errors.middle, candidate.table, []
    for stage in candidate.stages:
        resolved = resolved_stage(candidate, stage, errors.resolver)
        place = resolved.micro_batch, resolved, stage.first, stage.last
        now = float(entry_seconds(*place, middle)[0])
        predicted = float(table.compute_s[stage.entry] + table.collective_s[stage.entry])
        draws.append(layer_seconds(*place, factors) * (predicted / now if now > 0 else 1.0))
    return draws


def drawn_stages(stages: tuple[StagePlan, ...], draws: list[FloatArray], factor: float = 1.0) -> tuple[StagePlan, ...]:
    """Returns a plan's stages with the mean and the deviation of their seconds, and of their layers', over joint draws
    (`layer_draws`), all multiplied by a factor.
    """
    drawn = []
    for stage, drawn_s in zip(stages, draws, strict=True):
        whole = _drawn(factor * drawn_s.sum(axis=1), tuple(map(_drawn, (factor * drawn_s).T)))
        drawn.append(dataclasses.replace(stage, drawn=whole))
    return tuple(drawn)


def _drawn(drawn_s: FloatArray, layers: tuple[DrawnSeconds, ...] = ()) -> DrawnSeconds:
    return DrawnSeconds(float(np.mean(drawn_s)), float(np.std(drawn_s)), layers)


@final
class StageDraws:
    """Joint draws of the seconds of several models' stages that are no part of a training step, such as inference's, on
    the same devices: what is alike in them errs alike.

    Args:
        priced: for each model its costs, and the devices and mesh that a stage of any of its layers has.
    """

    def __init__(self, priced: Sequence[tuple[StageCostModel, StageDevices, MeshConfig]]) -> None:
        resolver = Resolver()
        self._resolved = [resolver.resolved(*model) for model in priced]
        errors = Errors.unmeasured(resolver)
        self._drawn, self._middle = errors.drawn(DRAWS), errors.middle
        self.source = resolver.source

    def of_layer(self, number: int, layer: int) -> FloatArray:
        """Returns the factors from predicted to actual seconds of a pass of a model's layer, which is a stage of its
        own, in each of K draws, (K,); `number` is the index of the model.
        """
        resolved: Resolved = self._resolved[number]
        drawn, middle = (
            entry_seconds(resolved.micro_batch, resolved, layer, layer, draws) for draws in (self._drawn, self._middle)
        )
        return np.asarray(drawn / np.where(middle > 0, middle, 1.0))

    def of_memory(self) -> FloatArray:
        """Returns the factors on seconds of reading memory, as of all that is no product, in each of K draws, (K,)."""
        return np.asarray(self._drawn.common[:, COMPUTE[1]])

    def of_sends(self, hosts: tuple[int, int]) -> FloatArray:
        """Returns the factors on sends from one host to another, or within one, in each of K draws, shape (K,)."""
        return np.asarray(self._drawn.common[:, link_class("send", hosts)])


def interval(drawn_s: FloatArray) -> tuple[float, float]:
    """Returns the 90 % interval of seconds, from draws of them, shape (K,)."""
    low, high = np.quantile(drawn_s, _ENDS)
    return float(low), float(high)
