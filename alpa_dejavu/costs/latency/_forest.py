"""Regression trees as plain arrays: grown elsewhere, evaluated here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from alpa_dejavu.costs.fitted_format import ForestData

Array = NDArray[np.float64]

_DECIMALS = 6
_OF_THRESHOLD = _DECIMALS + 1
"""The decimals of thresholds, which lie in the middle between two features."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Forest:
    """Trees whose leaves' values are added up.

    Features are looked at with six decimals: what a processor's logarithm has beyond them decides nothing.

    Attributes:
        base: what is added to all leaves.
        roots: of each tree, the place of its root among the nodes.
        feature, threshold: of each node, what is compared; of a leaf 0.
        left, right: of each node, the places of what follows where the feature is at most the threshold, and where it
            is above; of a leaf its own place.
        value: of each leaf; of other nodes 0.
    """

    base: float
    roots: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: Array
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    value: Array

    @classmethod
    def of(cls, trees: Sequence[NDArray[Any]], base: float) -> Forest:
        """Returns the forest of scikit-learn's histogram trees by their nodes: records, a node's children behind it."""
        sizes = [len(nodes) for nodes in trees]
        roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        nodes, first = np.concatenate(trees), np.repeat(roots, sizes)
        leaf, own = nodes["is_leaf"].astype(np.bool_), np.arange(len(nodes), dtype=np.int64)
        return cls(
            base=base,
            roots=roots,
            feature=np.where(leaf, 0, nodes["feature_idx"]).astype(np.int64),
            threshold=np.round(np.where(leaf, 0.0, nodes["num_threshold"]), _OF_THRESHOLD),
            left=np.where(leaf, own, first + nodes["left"]).astype(np.int64),
            right=np.where(leaf, own, first + nodes["right"]).astype(np.int64),
            value=np.where(leaf, nodes["value"], 0.0),
        )

    def predict(self, features: Array) -> Array:
        """Returns the sums of leaves for features of shape (rows, features), as `rounded` gives them."""
        rows = np.arange(len(features))[:, None]
        place = np.tile(self.roots, (len(features), 1))
        while True:
            low = features[rows, self.feature[place]] <= self.threshold[place]
            following = np.where(low, self.left[place], self.right[place])
            if (following == place).all():
                return np.asarray(self.base + self.value[place].sum(axis=1))
            place = following

    def state(self) -> ForestData:
        """Returns the trees as JSON's types."""
        return {
            "base": self.base,
            "roots": self.roots.tolist(),
            "feature": self.feature.tolist(),
            "threshold": self.threshold.tolist(),
            "left": self.left.tolist(),
            "right": self.right.tolist(),
            "value": self.value.tolist(),
        }

    @classmethod
    def of_state(cls, state: ForestData, num_features: int) -> Forest:
        """Returns the forest from what `state` gave.

        Raises:
            ValueError: it is no tree on so many features.
        """
        roots, feature, left, right = (
            np.array(each, dtype=np.int64) for each in (state["roots"], state["feature"], state["left"], state["right"])
        )
        threshold, value = (np.array(each, dtype=np.float64) for each in (state["threshold"], state["value"]))
        count, own = len(value), np.arange(len(value))
        for name, each in (("feature", feature), ("threshold", threshold), ("left", left), ("right", right)):
            if len(each) != count:
                raise ValueError(f"trees.{name} has {len(each)} numbers, but must have {count}, as value has")
        # A node's children are behind it, so that every way ends.
        for name, each, least, end in (
            ("roots", roots, 0 * roots, count),
            ("feature", feature, 0 * own, num_features),
            ("left", left, own, count),
            ("right", right, own, count),
        ):
            for wrong in np.flatnonzero((each < least) | (each >= end))[:1]:
                asked = f"from {least[wrong]} to {end - 1}"
                raise ValueError(f"trees.{name}[{wrong}] is {each[wrong]}, but must be {asked}")
        return cls(float(state["base"]), roots, feature, threshold, left, right, value)


def rounded(features: Array) -> Array:
    """Returns the features with as many decimals as are looked at."""
    return np.round(features, _DECIMALS)
