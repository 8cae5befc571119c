"""The strategies of one operator, as arrays that the solver can add up."""

import dataclasses
from functools import cached_property

import numpy as np

from alpa_dejavu.sharding._spec import Spec, of_rank


@dataclasses.dataclass(frozen=True)
class Strategy:
    """One way of computing an operator on a mesh: how result and operands are cut, and what that costs.

    Attributes:
        name: the strategy's name for people.
        output: for each dimension of the result the mesh axes that cut it.
        inputs: likewise for each operand as the operator needs it; empty if operands must be cut like the result.
        all_reduce: the mesh axes along which partial sums are added up.
        computation: the cost of computing the same on several devices, and of keeping a tensor whole.
        communication: the cost of the collectives within the operator.
    """

    name: str
    output: Spec
    inputs: tuple[Spec, ...] = ()
    all_reduce: tuple[int, ...] = ()
    computation: float = 0.0
    communication: float = 0.0

    def operand(self, position: int, rank: int) -> Spec:
        """Returns the mesh axes that must cut each dimension of the operand at a position; `rank` is that operand's."""
        return self.inputs[position] if self.inputs else of_rank(self.output, rank)


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A table of all strategies of one operator, with their costs, memory, and costs of bringing operands.

    Attributes:
        strategies: the operator's strategies.
        cost: the cost of computation plus communication of each strategy, shape (strategies,).
        memory: the bytes of the result on one device under each strategy, shape (strategies,).
        edges: for each operand the cost of resharding it from each of its own strategies (rows) to the cut that each
            strategy of this operator needs (columns).
        follow: the position of the operand whose choice decides this operator's; None if it chooses for itself.
        sources: for each strategy the number of the followed operand's strategy that it belongs to; -1 for none.
        max_tiles: into how many parts the result is cut at most, by this operator or the one that it follows.
    """

    strategies: tuple[Strategy, ...]
    cost: np.ndarray
    memory: np.ndarray
    edges: tuple[np.ndarray, ...]
    follow: int | None
    sources: tuple[int, ...]
    max_tiles: int

    @cached_property
    def outputs(self) -> tuple[Spec, ...]:
        """Returns for each sharding strategy the mesh axes that cut each dimension of the operator's result."""
        return tuple(strategy.output for strategy in self.strategies)

    @property
    def contents(self) -> tuple:
        """Returns a hashable tuple that equal tables of sharding strategies share.

        Cost matrices are compared by identity: equal ones are taken to be one and the same array.
        """
        return (
            self.strategies,
            self.memory.tobytes(),
            tuple(id(edge) for edge in self.edges),
            self.follow,
            self.sources,
            self.max_tiles,
        )


def unique_outputs(strategies: list[Strategy]) -> list[Strategy]:
    """Returns sharding strategies of an operator without those that cut its result like an earlier one."""
    seen: dict[Spec, Strategy] = {}
    for strategy in strategies:
        seen.setdefault(strategy.output, strategy)
    return list(seen.values())
