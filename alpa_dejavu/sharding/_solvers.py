"""The solver of a cost graph, or of what elimination leaves of it, by its name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import final

from alpa_dejavu.sharding._graph import CostGraph
from alpa_dejavu.sharding._ilp import MemoryRow, solve_ilp
from alpa_dejavu.sharding._options import INFINITY_COST
from alpa_dejavu.sharding.experimental import solve_relaxed

logger = logging.getLogger(__name__)


@final
class NamedSolver:
    """A solver of cost graphs, one of `SOLVERS` by its name; it is called with a graph and memory limits.

    Where "relaxed" finds nothing that is wanted, "ilp" has the last word.

    Attributes:
        slack: by what the last graph's best choices are cheaper than those given, at most; 0 for exact ones.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.slack = 0.0

    def __call__(self, graph: CostGraph, memory: Sequence[MemoryRow] = ()) -> dict[int, int]:
        """A choice for each node.

        Raises:
            ValueError: none meets the limits.
        """
        self.slack = 0.0
        if self._name == "relaxed":
            try:
                found = solve_relaxed(graph, memory)
            except ValueError as error:
                logger.info("The integer program is asked: %s.", error)
            else:
                if found.cost < INFINITY_COST:
                    self.slack = found.slack
                    return found.choice
        return solve_ilp(graph, tuple(memory))
