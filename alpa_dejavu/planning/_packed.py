"""Slicings whose submeshes surely pack into the hosts of a cluster."""

from __future__ import annotations

import dataclasses

import numpy as np

from alpa_dejavu._util.ties import least
from alpa_dejavu.clusters.placement import packings, place_stages
from alpa_dejavu.clusters.slow_inside import takes_part_of_several
from alpa_dejavu.problem import Cluster, NoPlanError, SearchSpace, Slicing, SlicingProblem
from alpa_dejavu.slicing import Slicer

__all__ = ["packed"]


def packed(problem: SlicingProblem, space: SearchSpace, cluster: Cluster, slicer: Slicer) -> Slicing:
    """Returns the stages into which a slicer cuts a model's layers; if these stages' submeshes don't pack into the
    hosts, the best stages whose submeshes surely do.

    Args:
        problem: the costs of all stages.
        space: the submeshes that stages may have.
        cluster: the hosts.
        slicer: the search that cuts layers into stages.
    """
    found = slicer.slice(problem)
    mixed = space.hosts is not None or any(takes_part_of_several(submesh, cluster) for submesh in space.submeshes)
    if not mixed or not found.found:
        return found
    try:
        place_stages(found.stages, space, cluster)
    except NoPlanError:
        kept = [np.where(which[:, None], problem.costs_s, np.inf) for which in packings(space, cluster)]
        each = [slicer.slice(dataclasses.replace(problem, costs_s=costs)) for costs in kept]
        best = least(each, key=lambda one: one.cost_s)
        return dataclasses.replace(best, lower_bound_s=min(found.lower_bound_s, best.cost_s))
    return found
