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
    """A solver of the auto-sharding engine's cost graphs by its name: "ilp" is exact, "relaxed" is a relaxation.

    It is called with a graph, each of whose nodes needs a choice, and with memory limits. Where "relaxed" finds no
    choices, or only ones that cost INFINITY_COST or more, an integer linear program is solved instead.

    Attributes:
        slack: the most by which the best choices for the last graph can be cheaper than those returned; 0 if exact.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.slack = 0.0

    def __call__(self, graph: CostGraph, memory: Sequence[MemoryRow] = ()) -> dict[int, int]:
        """Returns the number of the choice for each node of a cost graph.

        Raises:
            ValueError: no choices meet the memory limits.
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
