"""The order in which a device computes and communicates within a pass: what waits for what."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from alpa_dejavu.problem._division import AxisCollectives


@final
@dataclasses.dataclass(frozen=True, eq=False)
class PassFlow:
    """The data flow of one pass of a layer on one device: which operators and collectives wait for which.

    Its nodes are first the operators, in the order of their records, and then the collectives: those of the first of
    `collectives`, in the order of its arrays, then those of the next.

    Attributes:
        num_operators: how many operators there are.
        collectives: the collectives of activations. Whatever else the pass sends isn't in it.
        edges: pairs of nodes, the first of which must be done before the second begins; shape (edges, 2). What comes
            from outside of the pass is there when it begins.

    Raises ValueError for an edge whose ends aren't nodes.
    """

    num_operators: int
    collectives: tuple[AxisCollectives, ...]
    edges: NDArray[np.int32]

    def __post_init__(self) -> None:
        if self.edges.size and not 0 <= self.edges.min() <= self.edges.max() < self.num_nodes:
            raise ValueError(
                f"edges is from node {self.edges.min()} to {self.edges.max()}, but must be of nodes from 0 to "
                f"{self.num_nodes - 1}; number operators first, then collectives"
            )

    @property
    def num_nodes(self) -> int:
        """Returns how many operators and collectives there are together."""
        return self.num_operators + sum(len(one.counts) for one in self.collectives)
