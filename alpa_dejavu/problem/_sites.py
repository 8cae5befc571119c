"""The sites where submeshes may be, what crosses between the stages on them, and where layers may be cut."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Sites:
    """The hosts that each of S candidate submeshes takes, by kind of host, and the links between the stages on them.

    Hosts of one kind are interchangeable.

    Attributes:
        uses: shape (S, K), how many devices a submesh takes of each of K kinds of hosts.
        available: shape (K,), how many devices there are of each kind of host.
        links: shape (S, S), which of D kinds of links leads from a stage on one submesh to the next stage on another.
        crossing_s: shape (L, D) for L layers, the seconds that one micro-batch's tensors take over such a link, forward
            and backward, from a stage that ends before layer l to one that begins with it; row 0 isn't used.
        packing: shape (S, R), what a submesh takes of each of R capacities that stages on hosts of a kind can't exceed
            together, as one host of 6 devices holds one part of 4 at most; None: submeshes fit in any mixture.
        capacity: shape (R,), how much there is of each of these.
        both_wait: whether a transfer takes its seconds of the stage that sends, too, and not only of the next one.
    """

    uses: NDArray[np.int64]
    available: NDArray[np.int64]
    links: NDArray[np.int64]
    crossing_s: NDArray[np.float64]
    packing: NDArray[np.int64] | None = None
    capacity: NDArray[np.int64] | None = None
    both_wait: bool = False

    def __post_init__(self) -> None:
        for name, dtype in (("uses", np.int64), ("available", np.int64), ("links", np.int64), ("crossing_s", float)):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=dtype))

    def check(self, num_layers: int, submesh_sizes: NDArray[np.int64], num_devices: int) -> None:
        """Raises ValueError unless the sites fit the sizes of a slicing problem."""
        num_submeshes = len(submesh_sizes)
        shapes = self.uses.shape, self.available.shape, self.links.shape, self.crossing_s.shape
        if (
            shapes[0] != (num_submeshes, *self.available.shape)
            or shapes[2] != (num_submeshes, num_submeshes)
            or self.crossing_s.ndim != 2
            or len(self.crossing_s) != num_layers
        ):
            raise ValueError(
                f"sites: uses, available, links and crossing_s are {shapes}, not (S, K), (K,), (S, S) and (L, D) of "
                f"{num_submeshes} submeshes and {num_layers} layers"
            )
        if (self.uses < 0).any() or (self.uses.sum(axis=1) != submesh_sizes).any():
            raise ValueError(f"sites: uses adds up to {self.uses.sum(axis=1).tolist()}, not {submesh_sizes.tolist()}")
        if (self.available < 0).any() or self.available.sum() != num_devices:
            raise ValueError(f"sites: available is {self.available.tolist()}, which aren't {num_devices} devices")
        if (self.links < 0).any() or (self.links >= self.crossing_s.shape[1]).any():
            raise ValueError(f"sites: links has numbers outside 0..{self.crossing_s.shape[1] - 1}")
        if not (self.crossing_s >= 0).all():
            raise ValueError("sites: crossing_s has NaN or negative entries")

    @property
    def alike(self) -> bool:
        """Returns whether all hosts are of one kind, and submeshes fit on them in any mixture."""
        return self.uses.shape[1] == 1 and self.packing is None

    def with_capacity(self, takes: NDArray[np.int64], capacity: NDArray[np.int64]) -> Sites:
        """Returns the sites with more capacities that stages can't exceed: what each submesh takes of them, shape
        (S, R), and how much there is of each, shape (R,).
        """
        if self.packing is not None and self.capacity is not None:
            takes, capacity = np.column_stack([self.packing, takes]), np.append(self.capacity, capacity)
        return dataclasses.replace(self, packing=takes, capacity=capacity) if takes.size else self

    def part(self, submeshes: Sequence[int]) -> Sites:
        """Returns the sites with only some of their submeshes, given by their indices."""
        chosen = list(submeshes)
        packing = None if self.packing is None else self.packing[chosen]
        return dataclasses.replace(
            self, uses=self.uses[chosen], links=self.links[np.ix_(chosen, chosen)], packing=packing
        )

    def without_capacity(self) -> Sites:
        """Returns the sites without any capacities: submeshes fit on the hosts in any mixture."""
        return dataclasses.replace(self, packing=None, capacity=None)

    def crossing(self, layer: int, before: int, after: int) -> float:
        """Returns the seconds of a micro-batch from a stage's submesh to the next one's, which begins with `layer`."""
        return float(self.crossing_s[layer, self.links[before, after]])

    def hold(self, submeshes: Sequence[int], devices: str) -> bool:
        """Returns whether stages on these submeshes use the available devices of each kind of host: all of them if
        `devices` is "exactly", no more than them if it is "at most"; and no more of each capacity than there is.
        """
        if self.packing is not None and (self.packing[list(submeshes)].sum(axis=0) > self.capacity).any():
            return False
        used, available = self.uses[list(submeshes)].sum(axis=0).tolist(), self.available.tolist()
        return used == available or (devices == "at most" and all(map(operator.le, used, available)))


@final
@dataclasses.dataclass(frozen=True)
class Cuts:
    """A rule for where layers may be cut into stages.

    Attributes:
        ends: so many layers at the beginning, and at the end, aren't blocks, as embeddings and heads aren't.
        even: whether each stage must have equally many blocks.
        lone_ends: whether a stage may have layers that aren't blocks and nothing else.
    """

    ends: int = 0
    even: bool = False
    lone_ends: bool = True

    def allowed(self, num_layers: int, num_stages: int) -> NDArray[np.bool_]:
        """Returns which ranges of layers i..j may be one of so many stages, shape (L, L).

        >>> Cuts(ends=1, even=True).allowed(6, 2).nonzero()[0], Cuts(ends=1, even=True).allowed(6, 2).nonzero()[1]
        (array([0, 3]), array([2, 5]))
        """
        first, last = np.indices((num_layers, num_layers))
        blocks = num_layers - 2 * self.ends
        begin, end = ((place - self.ends).clip(0, blocks) for place in (first, last + 1))
        allowed = first <= last
        if self.even:
            per_stage, rest = divmod(blocks, num_stages)
            # Embeddings and heads stay with the blocks beside them.
            whole = (first == 0) | (first > self.ends)
            whole &= (last == num_layers - 1) | (last < num_layers - 1 - self.ends)
            allowed &= (
                whole & (end - begin == per_stage) & (begin % max(per_stage, 1) == 0) & (rest == 0) & (per_stage > 0)
            )
        if not self.lone_ends:
            allowed &= end > begin
        return allowed


ANY_CUTS = Cuts()
"""Every range of layers may be a stage."""
