"""A split whose points are moved in a projection, so that each worker has what it lacks."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground._data import Shards, Split, SplitTask, Uses
from alpa_dejavu.playground.data._nearness_splits import check_projection, projected
from alpa_dejavu.problem import checks

__all__ = ["MovedPoints"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
REPLACED_BY = ("samples", "inverse")


@final
@dataclasses.dataclass(frozen=True)
class MovedPoints(Split):
    """A share of each worker's points of another split is moved in a projection to where the worker has none, and
    replaced there by the nearest samples, which other workers have, too, or by the projection's inverse.

    The points that are moved are those that others of the worker cover best, where they go are those of all points that
    are the farthest from the worker's, one after the other, each farthest from the ones before, too. A sample that the
    inverse makes is synthetic, and has the target of the nearest sample.

    Attributes:
        base: the split whose points are moved.
        share: how many of a worker's points are moved.
        step: how much of the way they are moved.
        projection: "pca" or "umap".
        dimensions: coordinates of the projection.
        replaced_by: "samples" or "inverse".

    References:
        Gonzalez, Clustering to Minimize the Maximum Intercluster Distance, Theoretical Computer Science 38, 1985
            (farthest points first).
    """

    uses: ClassVar[Uses] = "at will"
    base: Split
    share: float = 0.1
    step: float = 1.0
    projection: str = "pca"
    dimensions: int = 8
    replaced_by: str = "samples"

    def __post_init__(self) -> None:
        checks.share("moved-points", "share", self.share)
        if not 0 < self.step <= 1:
            raise ValueError(f"moved-points: step is {self.step!r}, but must be above 0 and at most 1; 1 is the whole "
                             "way")  # fmt: skip
        check_projection("moved-points", self.projection, self.dimensions)
        checks.one_of("moved-points", "replaced_by", self.replaced_by, REPLACED_BY)

    def split(self, task: SplitTask) -> Shards:
        """Returns the samples of each worker, some of which are moved."""
        from scipy.spatial import cKDTree

        base = self.base.split(task)
        if base.made_inputs is not None:
            raise ValueError("moved-points: base makes samples itself, but must not; choose another one")
        picture = projected(task.inputs, self.projection, self.dimensions, task.seed)
        near, rows, moved = cKDTree(picture.points), list[Ints](), list[Floats]()
        for own in base.rows:
            kept, points = self._moved(picture.points, own)
            if self.replaced_by == "samples":
                rows.append(np.concatenate([kept, near.query(points)[1].astype(np.int64)]))
            else:
                begun = task.samples + sum(map(len, moved))
                rows.append(np.concatenate([kept, np.arange(begun, begun + len(points))]))
                moved.append(points)
        if not sum(map(len, moved)):
            return Shards(tuple(rows), task.samples)
        points = np.concatenate(moved)
        synthetic = picture.inverse(points).astype(task.inputs.dtype)
        return Shards(tuple(rows), task.samples, synthetic, task.targets[near.query(points)[1]])

    def _moved(self, points: Floats, own: Ints) -> tuple[Ints, Floats]:
        """The rows of a worker that stay, and the points to which the others move."""
        from scipy.optimize import linear_sum_assignment
        from scipy.spatial.distance import cdist

        count = min(round(self.share * len(own)), len(own) - 1)
        order = farthest_first(points[own], points[:0], len(own) - count)
        kept, moving = own[order], points[np.delete(own, order)]
        goals = points[farthest_first(points, points[kept], count)]
        _, chosen = linear_sum_assignment(cdist(moving, goals, "sqeuclidean"))
        return kept, moving + self.step * (goals[chosen] - moving)


def farthest_first(points: Floats, begun: Floats, count: int) -> Ints:
    """Returns the indices of points, each the farthest from all before it, and from those that are begun with; without
    any of these the first point comes first.
    """
    away = np.full(len(points), np.inf)
    for point in begun:
        away = np.minimum(away, np.square(points - point).sum(axis=1))
    order = np.zeros(count, np.int64)
    for place in range(count):
        order[place] = np.argmax(away)
        away = np.minimum(away, np.square(points - points[order[place]]).sum(axis=1))
        away[order[place]] = -1.0  # once alone, also where points are equal
    return order
