"""The order of clusters by seconds or by price, how sure it is, and where it changes with the saving."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Annotated, Literal, final

import numpy as np

from alpa_dejavu._util.dataclass_format import Needed
from alpa_dejavu._util.format_fields import Names, Share, Text, listed, stated
from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu._util.ties import ordered
from alpa_dejavu.planning.given._cells import Cell, Figures
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.planning.search._candidate import Candidate, Costs, alone
from alpa_dejavu.planning.search.uncertainty import drawn_steps
from alpa_dejavu.problem import Slicing

Place = tuple[str, str]
"""The names of a cell's cluster and saving."""
MEASURES: tuple[Literal["seconds", "price"], ...] = ("seconds", "price")
"""Clusters are ordered by a step's seconds, and by its price where that is known."""
SURE = 0.9
"""One cluster is before another for sure if it is so in this share of the draws."""
_DRAWS = 1000


@final
@dataclasses.dataclass(frozen=True)
class Order:
    """The order of clusters with one saving."""

    saving: Text
    measure: Annotated[Literal["seconds", "price"], stated('"seconds" or "price"')]
    clusters: Names  # the names of those that have a figure, the least first
    # How probable it is that the first of two clusters' true figure is the smaller one, by their indices in `clusters`,
    # shape (clusters, clusters).
    before: Annotated[tuple[Annotated[tuple[Share, ...], listed("a list of shares")], ...], listed("a list of rows")]
    unfit: Names  # the names of those on which nothing fits

    def is_before(self, cluster: str, other: str, sure: bool = True) -> bool | None:
        """Returns whether one cluster is before another; None if one has no figure, or that isn't sure. One on which
        nothing fits is behind all that have a figure. With `sure` False the predicted order counts.
        """
        if cluster in self.clusters and other in self.clusters:
            n, m = self.clusters.index(cluster), self.clusters.index(other)
            share = self.before[n][m]
            return n < m if not sure else True if share >= SURE else False if share <= 1 - SURE else None
        if {cluster, other} <= {*self.clusters, *self.unfit} and (cluster in self.clusters) != (other in self.clusters):
            return cluster in self.clusters
        return None


@final
@dataclasses.dataclass(frozen=True)
class OrderChange:
    """Two clusters whose order by "seconds" or "price" is another with some savings than with others."""

    measure: Annotated[Literal["seconds", "price"], stated('"seconds" or "price"')]
    one: Text  # pylint: disable=disallowed-name  # a key of the file
    other: Text
    before: Names  # `before`, `behind`: the savings with which `one` is before `other`, and those with which it isn't
    behind: Names
    sure: Needed[Annotated[bool, stated("true or false")]] = True  # whether both orders are sure; else predicted


def changes(orders: Sequence[Order], clusters: Sequence[str]) -> Iterator[OrderChange]:
    """Yields each pair of clusters whose order isn't the same in all of some orders by one measure."""
    for first, second in itertools.combinations(clusters, 2):
        for sure in (True, False):
            by_saving = {order.saving: order.is_before(first, second, sure) for order in orders}
            before, behind = (tuple(name for name in by_saving if by_saving[name] is side) for side in (True, False))
            if before and behind:
                yield OrderChange(orders[0].measure, first, second, before, behind, sure)
                break


def orders(
    cells: Sequence[Cell], own_draws: Mapping[Place, FloatArray], common_draws: Mapping[Place, FloatArray]
) -> Iterator[Order]:
    """Yields the clusters' order for each measure and saving, by joint draws of the seconds of cells with figures: each
    by its own ground, and all by the one that they have in common.

    Clusters on unlike grounds are before each other for as far as that is so on their own grounds and on the common
    one, of whose errors each ground has others: data sheets promise more than fitted models do.
    """
    for measure, saving in itertools.product(MEASURES, dict.fromkeys(cell.saving for cell in cells)):
        of_saving = [cell for cell in cells if cell.saving == saving]
        figures = {cell.cluster: cell.figures for cell in of_saving if cell.figures is not None}
        rates = {name: rate for name in figures if (rate := _per_second(figures[name], measure)) is not None}
        drawn, common = (
            {name: rate * draws[name, saving] for name, rate in rates.items()} for draws in (own_draws, common_draws)
        )
        longer = _longer(list(figures.values()))
        ranked = ordered(rates, key=lambda name: rates[name] * _ranked_s(figures[name], longer))
        rows = []
        for first, second in itertools.product(ranked, ranked):
            share = _share_before(drawn[first], drawn[second])
            if figures[first].ground != figures[second].ground:
                share = _less_sure(share, _share_before(common[first], common[second]))
            rows.append(share)
        before = tuple(tuple(rows[n : n + len(ranked)]) for n in range(0, len(rows), len(ranked) or 1))
        yield Order(saving, measure, tuple(ranked), before, tuple(cell.cluster for cell in of_saving if not cell.fits))


def _longer(figures: Sequence[Figures]) -> float:
    """Returns how many times as long steps take by better grounds as by the common one: the geometric mean of plans
    that are priced by both.
    """
    ratios = [own.expected_step_s / own.common_s for own in figures if own.common_s is not None]
    return statistics.geometric_mean(ratios) if ratios else 1.0


def _ranked_s(figures: Figures, longer: float) -> float:
    """Returns the seconds that a step is ranked by, as if those on the common ground were as far off as others'."""
    return figures.expected_step_s * (longer if figures.common_s is None else 1.0)


def _per_second(figures: Figures, measure: str) -> float | None:
    """Returns how much a second of a step counts; None if that isn't known."""
    if measure == "seconds":
        return 1.0
    return None if figures.price is None else figures.price / figures.expected_step_s


def _less_sure(share: float, other: float) -> float:
    """Returns the one of two probabilities that is nearer to a half; a half if they are on unlike sides of it.

    >>> _less_sure(0.95, 0.7), _less_sure(0.2, 0.1), _less_sure(0.95, 0.3)
    (0.7, 0.2, 0.5)
    """
    return sorted((share, other, 0.5))[1]


def _share_before(first: FloatArray, second: FloatArray) -> float:
    """Returns the share of draws in which the first is smaller; those in which they are equal count half."""
    return float((first < second).mean() + (first == second).mean() / 2)


def stages_alone(planned: PlanningResult) -> Candidate:
    """Returns a result's plan as a candidate with the costs of its own submeshes alone, which takes little room."""
    costs = Costs(planned.model, planned.cluster, planned.space, planned.run, planned.table)
    return alone(Candidate(costs, Slicing(planned.choices, 0.0, 0.0, 0, 0.0), simulated_s=planned.timeline.step_s))


def joint_draws(plans: Mapping[Place, Candidate], grounds: Mapping[Place, str]) -> dict[Place, FloatArray]:
    """Returns the seconds of each cell's step in joint draws of how far off predictions may be. Plans on the same
    devices by the same ground err together; others have in common what frameworks and divided layers are off.
    """
    alike: dict[Hashable, list[Place]] = {}
    for place, plan in plans.items():
        devices = frozenset(host.device.name for host in plan.cluster.hosts)
        alike.setdefault((devices, grounds[place]), []).append(place)
    seconds: dict[Place, FloatArray] = {}
    for seed, places in enumerate(alike.values()):
        steps = drawn_steps([plans[place] for place in places], _DRAWS, seed=seed, across=0)
        seconds |= {place: np.asarray(steps[:, n]) for n, place in enumerate(places)}
    return seconds
