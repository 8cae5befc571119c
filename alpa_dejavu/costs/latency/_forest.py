"""Regression trees as plain arrays: grown elsewhere, evaluated here."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from alpa_dejavu.costs.fitted_format import ForestData

Array = NDArray[np.float64]

_DECIMALS = 6
_OF_THRESHOLD = _DECIMALS + 1
"""The decimals of thresholds, which lie in the middle between two features."""
_NUM_TREES = 60
_RATE = 0.12
_REGULARIZATION = 5.0
"""The rows of value zero that a leaf's mean is taken with."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Forest:
    """A regression by decision trees whose leaves' values are added up.

    Features are compared with six decimals, so that the last bits of a processor's logarithms decide nothing.

    Attributes:
        base: a constant that is added to the sum of the leaves' values.
        roots: for each tree, the index of its root among the nodes.
        feature, threshold: for each node, the index of a feature and what it is compared with; 0 for a leaf.
        left, right: for each node, the index of the node that follows where the feature is at most the threshold, and
            where it is above; for a leaf its own index.
        value: for each node its value if it is a leaf, else 0.
    """

    base: float
    roots: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: Array
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    value: Array

    @classmethod
    def grown(cls, features: Array, target: Array) -> Forest:
        """Returns trees boosted with scikit-learn: each is grown on what those before it leave of the target.

        A leaf's value is the mean of its rows, drawn to zero if they are few, times a learning rate.

        Args:
            features: shape (rows, features), rounded to six decimals.
            target: the values that are to be predicted, shape (rows,).

        References:
            Friedman, Greedy Function Approximation: A Gradient Boosting Machine, Annals of Statistics 29, 2001.
            Chen and Guestrin, XGBoost: A Scalable Tree Boosting System, KDD 2016: the leaves' regularization.
        """
        from sklearn.tree import DecisionTreeRegressor

        base = float(target.mean())
        left_over = target - base
        roots, parts = list[int](), list[tuple[NDArray[Any], ...]]()
        for _ in range(_NUM_TREES):
            estimator = DecisionTreeRegressor(max_leaf_nodes=20, min_samples_leaf=20, random_state=0)
            leaves, tree = estimator.fit(features, left_over).apply(features), estimator.tree_
            counts, sums = (np.bincount(leaves, weights, tree.node_count) for weights in (None, left_over))
            value = _RATE * sums / (counts + _REGULARIZATION)
            left_over = left_over - value[leaves]
            is_leaf, own = tree.children_left < 0, np.arange(tree.node_count)
            root = roots[-1] + len(parts[-1][0]) if roots else 0
            roots.append(root)
            parts.append((
                np.where(is_leaf, 0, tree.feature),
                np.where(is_leaf, 0.0, np.round(tree.threshold, _OF_THRESHOLD)),
                root + np.where(is_leaf, own, tree.children_left),
                root + np.where(is_leaf, own, tree.children_right),
                value,
            ))  # fmt: skip
        feature, threshold, left, right, value = (np.concatenate(each) for each in zip(*parts, strict=True))
        return cls(base, np.array(roots), feature, threshold, left, right, value)

    def predict(self, features: Array) -> Array:
        """Returns the trees' predictions (sums of the values of leaves), shape (rows,), for features of shape (rows,
        features), rounded to six decimals.
        """
        rows = np.arange(len(features))[:, None]
        place = np.tile(self.roots, (len(features), 1))
        while True:
            low = features[rows, self.feature[place]] <= self.threshold[place]
            following = np.where(low, self.left[place], self.right[place])
            if (following == place).all():
                return np.asarray(self.base + self.value[place].sum(axis=1))
            place = following

    def state(self) -> ForestData:
        """Returns the forest's trees as JSON's types."""
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
        """Returns the forest of decision trees in `state`, as its method `state` gives them.

        Raises:
            ValueError: they aren't trees, or compare more than `num_features` features.
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
    """Returns features rounded to the six decimals at which a forest's decision trees compare them."""
    return np.round(features, _DECIMALS)
