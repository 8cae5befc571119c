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
    """What `BoundarySolver` would find."""

    def __init__(self, program: LayerProgram, mesh: LogicalMesh) -> None:
        self.program, self.mesh = program, mesh
        self.layouts = ((BoundaryLayout(), BoundaryLayout()),)
        self.costs: NDArray[np.float64] = np.zeros((1, 1))

    def strategies(self, received: int, sent: int) -> tuple[Strategy, ...]:
        """Everything whole."""
        ranks = [operator.rank for operator in self.program.operators]
        whole = [Strategy("R", replicated(rank)) for rank in range(max(ranks, default=0) + 1)]
        return tuple(whole[rank] for rank in ranks)

    def spec(self, place: int, layout: int) -> Spec | None:
        """A whole tensor."""
        return replicated(self.program.operators[place].rank)

    def objective(self, received: int, sent: int) -> float:
        """Nothing is sent."""
        return 0.0
