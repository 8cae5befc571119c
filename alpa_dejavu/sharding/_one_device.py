"""A program on a mesh of one device: there is nothing to choose."""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.sharding._boundary_layouts import BoundaryLayout
from alpa_dejavu.sharding._layer_program import LayerProgram
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._spec import Spec, replicated
from alpa_dejavu.sharding._table import Strategy


@final
class OneDevice:
    """A solver for one device, with the interface of `BoundarySolver`: there is one solution, and it is free."""

    def __init__(self, program: LayerProgram, mesh: LogicalMesh) -> None:
        self.program, self.mesh = program, mesh
        self.layouts = ((BoundaryLayout(), BoundaryLayout()),)
        self.costs: NDArray[np.float64] = np.zeros((1, 1))

    def strategies(self, received: int, sent: int) -> tuple[Strategy, ...]:
        """Returns strategies that leave every result whole."""
        ranks = [operator.rank for operator in self.program.operators]
        whole = [Strategy("R", replicated(rank)) for rank in range(max(ranks, default=0) + 1)]
        return tuple(whole[rank] for rank in ranks)

    def spec(self, place: int, layout: int) -> Spec | None:
        """Returns the spec of a whole tensor."""
        return replicated(self.program.operators[place].rank)

    def objective(self, received: int, sent: int) -> float:
        """Returns zero: one device sends nothing."""
        return 0.0
