"""Slicings whose submeshes surely pack into the hosts of a cluster."""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from alpa_dejavu._util.ties import least
from alpa_dejavu.clusters.host_classes import by_sites, kinds_of, takes_part_of_several
from alpa_dejavu.clusters.placement import packings, place_stages
from alpa_dejavu.problem import Cluster, NoPlanError, SearchSpace, Slicing, SlicingProblem, StageChoice
from alpa_dejavu.slicing import Slicer

__all__ = ["packed"]

_MOST_TRIED = 16
"""So many slicings that don't pack are given up, in favour of submeshes that fit in any mixture."""


def packed(problem: SlicingProblem, space: SearchSpace, cluster: Cluster, slicer: Slicer) -> Slicing:
    """Returns the stages into which a slicer cuts a model's layers, of those whose submeshes pack into the hosts.

    Where the slicer's stages don't pack, it is asked again with one stage less of a size that stands in the way, for
    each such size. If that finds none after some tries, the stages are the best whose submeshes fit in any mixture.

    Args:
        problem: the costs of all stages.
        space: the submeshes that stages may have.
        cluster: the hosts.
        slicer: the search that cuts layers into stages.
    """
    found = slicer.slice(problem)
    if not by_sites(cluster) and not any(takes_part_of_several(submesh, cluster) for submesh in space.submeshes):
        return found
    tried, waiting = 0, [(found.cost_s, 0, found, problem)] if found.found else []
    while waiting and not _packs(waiting[0][2].stages, space, cluster):
        if tried >= _MOST_TRIED or problem.sites is None:
            at_least = min(slicing.lower_bound_s for _, _, slicing, _ in waiting)
            return _in_any_mixture(problem, space, cluster, slicer, at_least)
        _, _, slicing, here = heapq.heappop(waiting)
        for fewer in _with_fewer(here, slicing.stages, space, cluster):
            tried += 1
            slicing = slicer.slice(fewer)
            if slicing.found:
                heapq.heappush(waiting, (slicing.cost_s, tried, slicing, fewer))
    if not waiting:
        return Slicing.of(problem, ())
    best = waiting[0][2]
    return dataclasses.replace(best, lower_bound_s=min(slicing.lower_bound_s for _, _, slicing, _ in waiting))


def _with_fewer(
    problem: SlicingProblem, stages: Sequence[StageChoice], space: SearchSpace, cluster: Cluster
) -> Iterator[SlicingProblem]:
    """Yields problems in which stages like some that don't pack are fewer, of one size each; whatever packs is allowed
    by one of them.
    """
    kinds, hosts = kinds_of(cluster), space.hosts or [()] * len(space.submeshes)
    sites = [(one, *sorted(kinds[host] for host in on)) for one, on in zip(space.submeshes, hosts, strict=True)]
    conflict = list(stages)
    for stage in stages:
        others = [one for one in conflict if one != stage]
        conflict = conflict if _packs(others, space, cluster) else others
    assert problem.sites is not None, "asked where there are sites"
    for site, count in Counter(sites[stage.submesh] for stage in conflict).items():
        takes = np.array([[int(each == site)] for each in sites])
        fewer = problem.sites.with_capacity(takes, np.array([count - 1]))
        yield dataclasses.replace(problem, sites=fewer)


def _in_any_mixture(
    problem: SlicingProblem, space: SearchSpace, cluster: Cluster, slicer: Slicer, at_least: float
) -> Slicing:
    """Returns the best stages on submeshes that fit in any mixture; no others cost less than `at_least`."""
    kept = [np.where(which[:, None], problem.costs_s, np.inf) for which in packings(space, cluster)]
    each = [slicer.slice(dataclasses.replace(problem, costs_s=costs)) for costs in kept]
    best = least(each, key=lambda one: one.cost_s)
    if not _packs(best.stages, space, cluster):
        return Slicing.of(problem, ())
    return dataclasses.replace(best, lower_bound_s=min(at_least, best.cost_s))


def _packs(stages: Sequence[StageChoice], space: SearchSpace, cluster: Cluster) -> bool:
    try:
        place_stages(stages, space, cluster)
    except NoPlanError:
        return False
    return True
