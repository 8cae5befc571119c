"""Steps of candidate plans in joint draws of their costs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from alpa_dejavu._ranges import FloatArray
from alpa_dejavu.crossing import Crossings
from alpa_dejavu.planning._candidate import Candidate
from alpa_dejavu.problem import Run, StageChoice
from alpa_dejavu.uncertainty._errors import Errors, Factors, entry_seconds
from alpa_dejavu.uncertainty._resolved import Resolved, Resolver
from alpa_dejavu.uncertainty._spreads import link_class

__all__ = ["closed_form", "resolved_stage", "step_draws"]


def step_draws(
    candidates: Sequence[Candidate], resolver: Resolver, errors: Errors, factors: Factors
) -> FloatArray:
    """Seconds of each candidate's step in each draw, shape (K, candidates).

    The step is the closed form's, scaled to what the simulation gave where there was one: what the closed form leaves
    out, it leaves out in all draws alike.
    """
    middle, found = errors.middle, np.zeros((len(factors), len(candidates)))
    for n, candidate in enumerate(candidates):
        drawn, (now,) = (_step_s(candidate, resolver, each) for each in (factors, middle))
        found[:, n] = drawn * (1.0 if candidate.timeline is None else candidate.step_s / now)
    return found


def closed_form(
    micro_batch_s: FloatArray, boundary_s: FloatArray, once_s: FloatArray, run: Run, shares: FloatArray | None = None
) -> FloatArray:
    """A step by Alpa's formula, shape (K,), of stages' seconds, each of shape (K, stages).

    Args:
        micro_batch_s: forward and backward of one micro-batch.
        boundary_s: of one micro-batch's transfers.
        once_s: what comes once a step.
        run: its number of micro-batches.
        shares: where all devices share a CPU, each stage's share of it: a step is then as long as the work of all.

    >>> one = np.ones((1, 2))
    >>> closed_form(one, 0 * one, 0.5 * one, Run(3)), closed_form(one, one, one, Run(3), np.array([0.5, 0.5]))
    (array([5.]), array([8.]))
    """
    costs = micro_batch_s + boundary_s
    if shares is not None:
        work = run.num_micro_batches * (costs * shares).sum(axis=1)
        return np.asarray(work + (once_s * shares + boundary_s * (1 - shares)).sum(axis=1))
    return np.asarray(costs.sum(axis=1) + (run.num_micro_batches - 1) * costs.max(axis=1) + once_s.sum(axis=1))


def resolved_stage(candidate: Candidate, stage: StageChoice, resolver: Resolver) -> Resolved:
    """What a candidate's stage is made of."""
    config, pricing = candidate.space.configs[stage.submesh][stage.config], candidate.table.pricing_of(stage.submesh)
    assert config is not None, "a slicer chose an entry that the search space doesn't offer"
    return resolver.resolved(pricing, candidate.space.submeshes[stage.submesh], config)


def _step_s(candidate: Candidate, resolver: Resolver, factors: Factors) -> FloatArray:
    stages, cluster = candidate.stages, candidate.cluster
    parts = np.zeros((3, len(factors), len(stages)))
    for n, stage in enumerate(stages):
        resolved = resolved_stage(candidate, stage, resolver)
        for kind, seconds in enumerate((resolved.micro_batch, resolved.boundary, resolved.step)):
            parts[kind, :, n] = entry_seconds(seconds, resolved, stage.first, stage.last, factors)
    if candidate.table.crossings is not None:
        for n, (before, stage) in enumerate(itertools.pairwise(stages), 1):
            parts[1, :, n] = _crossing_s(candidate.table.crossings, before, stage, factors)
    sizes = np.array([candidate.space.submeshes[stage.submesh].num_devices for stage in stages])
    shares = sizes / cluster.num_devices if cluster.shared else None
    return closed_form(parts[0], parts[1], parts[2], candidate.run, shares)


def _crossing_s(crossed: Crossings, before: StageChoice, stage: StageChoice, factors: Factors) -> FloatArray:
    """From one stage to the next in each draw, shape (K,): over the link between the kinds of their hosts."""
    link = crossed.links[before.submesh, stage.submesh]
    seconds = crossed.forward_s[stage.first, link] + crossed.backward_s[stage.first, link]
    drawn: FloatArray = seconds * factors.common[:, link_class("send", (0, int(crossed.between[link])))]
    return drawn
