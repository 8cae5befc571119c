"""The order of clusters by seconds or by price, how sure it is, and where it changes with the saving."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Annotated, TypeAlias, final

import numpy as np

from alpa_dejavu._util.dataclass_format import Needed, chosen
from alpa_dejavu._util.format_fields import Text, listed, said
from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu._util.ties import ordered
from alpa_dejavu.planning.given.comparison._cells import Cell, Names, Share
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.planning.search._candidate import Candidate, Costs
from alpa_dejavu.planning.search.uncertainty import drawn_steps
from alpa_dejavu.problem import Slicing

__all__ = ["MEASURES", "SURE", "Change", "Order", "changes", "joint_draws", "orders", "stages_alone"]

Place = tuple[str, str]
"""The names of a cell's cluster and saving."""
MEASURES = ("seconds", "price")
"""Clusters are ordered by a step's seconds, and by its price where that is known."""
_Measure: TypeAlias = Annotated[str, chosen(MEASURES), said('"seconds" or "price"')]
SURE = 0.9
"""One cluster is before another for sure if it is so in this share of the draws."""
_DRAWS = 1000


@final
@dataclasses.dataclass(frozen=True)
class Order:
    """The order of clusters with one saving.

    Attributes:
        saving: the saving's name.
        measure: "seconds" or "price" of a step.
        clusters: the names of those that have a figure, the least first.
        before: how probable it is that the first of two clusters' true figure is the smaller one, by their indices in
            `clusters`, shape (clusters, clusters).
        unfit: the names of those on which nothing fits.
    """

    saving: Text
    measure: _Measure
    clusters: Names
    before: Annotated[tuple[Annotated[tuple[Share, ...], listed("a list of shares")], ...], listed("a list of rows")]
    unfit: Names

    def is_before(self, one: str, other: str, sure: bool = True) -> bool | None:
        """Returns whether one cluster is before another; None if one of them has no figure, or if that isn't sure.

        A cluster on which nothing fits is behind all that have a figure. With `sure` False the predicted order counts.
        """
        if one in self.clusters and other in self.clusters:
            n, m = self.clusters.index(one), self.clusters.index(other)
            share = self.before[n][m]
            return n < m if not sure else True if share >= SURE else False if share <= 1 - SURE else None
        if {one, other} <= {*self.clusters, *self.unfit} and (one in self.clusters) != (other in self.clusters):
            return one in self.clusters
        return None


@final
@dataclasses.dataclass(frozen=True)
class Change:
    """Two clusters whose order is another with some savings than with others.

    Attributes:
        measure: "seconds" or "price".
        one, other: the clusters' names.
        before: the names of the savings with which `one` is before `other`.
        behind: those with which it is behind it.
        sure: whether both orders are sure; else they are those that are predicted.
    """

    measure: _Measure
    one: Text
    other: Text
    before: Names
    behind: Names
    sure: Needed[Annotated[bool, said("true or false")]] = True


def changes(found: Sequence[Order], clusters: Sequence[str]) -> Iterator[Change]:
    """Yields each pair of clusters whose order isn't the same in all of some orders by one measure."""
    for one, other in itertools.combinations(clusters, 2):
        for sure in (True, False):
            said = {order.saving: order.is_before(one, other, sure) for order in found}
            before, behind = (tuple(name for name, is_so in said.items() if is_so is side) for side in (True, False))
            if before and behind:
                yield Change(found[0].measure, one, other, before, behind, sure)
                break


def orders(cells: Sequence[Cell], draws: Mapping[Place, FloatArray]) -> Iterator[Order]:
    """Yields the order of the clusters for each measure and saving.

    Args:
        cells: those of all clusters and savings.
        draws: the seconds of a step of each cell that has figures, in joint draws of the errors of predictions.
    """
    for measure, saving in itertools.product(MEASURES, dict.fromkeys(cell.saving for cell in cells)):
        there = [cell for cell in cells if cell.saving == saving]
        known = {cell.cluster: rate for cell in there if (rate := _per_second(cell, measure)) is not None}
        drawn = {name: rate * draws[name, saving] for name, (_, rate) in known.items()}
        ranked = [name for name, _ in ordered(known.items(), key=_first)]
        yield Order(
            saving, measure, tuple(ranked),
            tuple(tuple(_share_before(drawn[a], drawn[b]) for b in ranked) for a in ranked),
            tuple(cell.cluster for cell in there if not cell.fits),
        )  # fmt: skip


def _per_second(cell: Cell, measure: str) -> tuple[float, float] | None:
    """The cell's figure, and so much of it for each second of the step; None if it isn't known."""
    if cell.figures is None:
        return None
    step_s, price = cell.figures.expected_step_s, cell.figures.price
    if measure == "seconds":
        return step_s, 1.0
    return None if price is None else (price, price / step_s)


def _first(named: tuple[str, tuple[float, float]]) -> float:
    return named[1][0]


def _share_before(one: FloatArray, other: FloatArray) -> float:
    """The share of draws in which one is smaller; those in which they are equal count half."""
    return float((one < other).mean() + (one == other).mean() / 2)


def stages_alone(planned: PlanningResult) -> Candidate:
    """Returns a result's plan as a candidate whose costs are those of its own submeshes alone, so that it takes little
    room.
    """
    chosen = sorted({stage.submesh for stage in planned.choices})
    stages = tuple(dataclasses.replace(stage, submesh=chosen.index(stage.submesh)) for stage in planned.choices)
    costs = Costs(
        planned.model, planned.cluster, planned.space.part(chosen), planned.run, planned.table.part(chosen),
        partial=True,
    )  # fmt: skip
    return Candidate(costs, Slicing(stages, 0.0, 0.0, 0, 0.0), timeline=planned.timeline)


def joint_draws(plans: Mapping[Place, Candidate], rest_on: Mapping[Place, str]) -> dict[Place, FloatArray]:
    """Returns the seconds of the step of each cell's plan in joint draws of how far off predictions may be.

    Plans on the same devices that are predicted by the same calibration err together. On unlike devices, or by unlike
    calibrations, errors are drawn independently.

    Args:
        plans: the plans, by the names of cluster and saving.
        rest_on: the name of the calibration of each.
    """
    alike: dict[Hashable, list[Place]] = {}
    for place, plan in plans.items():
        devices = frozenset(host.device.name for host in plan.cluster.hosts)
        alike.setdefault((devices, rest_on[place]), []).append(place)
    found: dict[Place, FloatArray] = {}
    for seed, places in enumerate(alike.values()):
        steps = drawn_steps([plans[place] for place in places], _DRAWS, seed=seed)
        found |= {place: np.asarray(steps[:, n]) for n, place in enumerate(places)}
    return found
