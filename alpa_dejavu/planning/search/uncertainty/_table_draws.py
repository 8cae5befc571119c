"""Splits whole cost tables by class, and redraws them: prefix sums of layers' seconds, times the errors' factors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray, stage_sum
from alpa_dejavu._util.ties import rounded
from alpa_dejavu.costs.table import CostTable
from alpa_dejavu.planning.search.uncertainty._errors import Factors
from alpa_dejavu.planning.search.uncertainty._resolved import Resolved, Resolver, Seconds
from alpa_dejavu.planning.search.uncertainty._spreads import link_class
from alpa_dejavu.problem import SearchSpace

__all__ = ["meet", "redrawn"]


def meet(table: CostTable, space: SearchSpace, resolver: Resolver) -> None:
    """Has a resolver number the prediction errors of every entry of a cost table (a stage on a submesh) and of its
    interstage transfers, so that these errors can be drawn jointly.
    """
    for _ in _configs(table, space, resolver):
        pass
    for link in range(0 if table.interstage is None else len(table.interstage.ends)):
        resolver.sent(table, link)


def redrawn(table: CostTable, space: SearchSpace, resolver: Resolver, factors: Factors, draw: int = 0) -> CostTable:
    """Returns a cost table as it would be with the prediction errors of one joint random draw.

    The operators and collectives of an entry (a stage on a submesh) are multiplied by one factor for a micro-batch and
    by another one for what comes once a step; interstage transfers have a factor of their own.

    Args:
        table: as it was predicted.
        space: the submeshes and configs of the table.
        resolver: the one that has numbered the errors.
        factors: the draws of the factors from predicted to actual seconds.
        draw: the index of the draw to take.
    """
    ratios = np.ones((2, *table.offered.shape))
    for s, c, resolved in _configs(table, space, resolver):
        variants, divided = factors.of_variants(resolved, draw), float(factors.divided(resolved)[draw])
        for n, part in enumerate((resolved.micro_batch, resolved.step)):
            before = _ranges(part, resolved, None, None)
            after = _ranges(part, resolved, variants, factors.common[draw]) * divided
            np.divide(after, before, out=ratios[n, :, :, s, c], where=before > 0)
    names = {
        0: ("compute_forward_s", "compute_backward_s", "collective_forward_s", "collective_backward_s"),
        1: ("synchronisation_s", "update_s"),
    }
    drawn: dict[str, Any] = {
        name: rounded(getattr(table, name) * ratios[n]) for n, group in names.items() for name in group
    }
    found = dataclasses.replace(table, **drawn)
    if table.transfer is None:
        return found
    within, between = (float(factors.common[draw, link_class("send", ends)]) for ends in ((0, 0), (0, 1)))
    return found.with_transfer(table.transfer.scaled(within, between), space)


def _ranges(part: Seconds, resolved: Resolved, variants: FloatArray | None, common: FloatArray | None) -> FloatArray:
    """Returns the seconds of layers i..j, by factors where they are given; shape (L, L)."""
    rows = part.of_variants if variants is None else part.of_variants * variants
    found = stage_sum(rows.sum(axis=1), resolved.of_stages)
    for number, ranges in part.of_ranges.items():
        found = found + ranges * (1.0 if common is None else common[number])
    return found


def _configs(table: CostTable, space: SearchSpace, resolver: Resolver) -> Iterator[tuple[int, int, Resolved]]:
    costs = table.stage_costs
    assert costs is not None, "a table that was priced keeps its prices"
    for s, (devices, configs) in enumerate(zip(table.devices, space.configs, strict=True)):
        for c, config in enumerate(configs):
            if config is not None and table.offered[:, :, s, c].any():
                yield s, c, resolver.resolved(costs, devices, config)
