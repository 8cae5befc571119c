"""The strategies of one operator, as arrays that the solver can add up."""

import dataclasses
from functools import cached_property

import numpy as np

from alpa_dejavu.sharding._spec import Spec, of_rank


@dataclasses.dataclass(frozen=True)
class Strategy:
    """One way of computing an operator on a mesh: how result and operands are cut, and what that costs.

    Attributes:
        name: in Alpa's notation, for reading.
        output: how its result is cut.
        inputs: how its operands must be cut; empty where they follow from the result.
        all_reduce: the axes along which partial sums are added up.
        computation: the cost of computing more than once what once would do, and of keeping it.
        communication: the cost of the collectives within the operator.
    """

    name: str
    output: Spec
    inputs: tuple[Spec, ...] = ()
    all_reduce: tuple[int, ...] = ()
    computation: float = 0.0
    communication: float = 0.0

    def operand(self, position: int, rank: int) -> Spec:
        """Returns how the strategy needs the operand at a position to be cut, given that operand's rank."""
        return self.inputs[position] if self.inputs else of_rank(self.output, rank)


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A table of all strategies of one operator, with their costs, memory, and costs of bringing operands.

    Attributes:
        strategies: the strategies.
        cost: computation plus communication of each, shape (strategies,).
        memory: bytes of the result on one device, shape (strategies,).
        edges: for each operand the cost of bringing it from each of its strategies (rows) to what each strategy of
            this operator needs (columns).
        follow: the operand whose choice decides this operator's; None if it chooses for itself.
        sources: for each strategy the strategy of the followed operand that it belongs to; -1 for none.
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
        """Returns how the operator's result is cut under each strategy."""
        return tuple(strategy.output for strategy in self.strategies)


    @property
    def contents(self) -> tuple:
        """Returns a tuple that two tables share if they are equal; equal cost matrices are one and the same array."""
        return (
            self.strategies, self.memory.tobytes(), tuple(id(edge) for edge in self.edges), self.follow, self.sources,
            self.max_tiles,
        )


def unique_outputs(strategies: list[Strategy]) -> list[Strategy]:
    """Returns the first one of the strategies for each different cut of the result."""
    seen: dict[Spec, Strategy] = {}
    for strategy in strategies:
        seen.setdefault(strategy.output, strategy)
    return list(seen.values())
