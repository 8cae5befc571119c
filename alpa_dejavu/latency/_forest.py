"""Regression trees as plain arrays: grown elsewhere, evaluated here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._state import State, number, numbers, places

Array = NDArray[np.float64]

_DECIMALS = 6
_OF_THRESHOLD = _DECIMALS + 1
"""Of thresholds, which lie in the middle between two features."""


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
        """From the nodes of scikit-learn's histogram trees: records, a node's children behind it."""
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
        """Sums of leaves of features of shape (rows, features), as `rounded` gives them."""
        rows = np.arange(len(features))[:, None]
        place = np.tile(self.roots, (len(features), 1))
        while True:
            low = features[rows, self.feature[place]] <= self.threshold[place]
            following = np.where(low, self.left[place], self.right[place])
            if (following == place).all():
                return np.asarray(self.base + self.value[place].sum(axis=1))
            place = following

    def state(self) -> State:
        """As JSON's types."""
        return {field.name: np.asarray(getattr(self, field.name)).tolist() for field in dataclasses.fields(self)}

    @classmethod
    def of_state(cls, state: Mapping[str, Any], num_features: int) -> Forest:
        """From what `state` gave.

        Raises:
            ValueError: a part is missing, or is no tree on so many features.
        """
        value = numbers(state, "value")
        count = len(value)
        following = places(state, "left", count), places(state, "right", count)
        feature, roots, own = places(state, "feature", count), places(state, "roots"), np.arange(count)
        if (feature >= num_features).any():
            raise ValueError(f"trees: feature is up to {feature.max()}, but there are {num_features} features")
        # A node's children are behind it, so that every way ends.
        if any(((each < own) | (each >= count)).any() for each in following) or not (roots < count).all():
            raise ValueError(f"trees: left, right and roots must lead to later ones of the {count} nodes")
        return cls(number(state, "base"), roots, feature, numbers(state, "threshold", count), *following, value)


def rounded(features: Array) -> Array:
    """Features with as many decimals as are looked at."""
    return np.round(features, _DECIMALS)
