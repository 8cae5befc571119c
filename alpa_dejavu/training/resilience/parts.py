"""Parts of a model, which fail as a whole: for each number of its parameters, which unit owns it."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from typing import TYPE_CHECKING, final

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu._util.near_names import near

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Int, PRNGKeyArray

__all__ = ["Axis", "Owner", "Parts", "counted", "drawn"]


@final
@dataclasses.dataclass(frozen=True)
class Axis:
    """An axis of an array of parameters along which units lie: index i belongs to unit (i // width) % units.

    Attributes:
        axis: the axis, counted from the end where it is negative.
        width: so many indices next to each other belong to the same unit.
        units: how many units there are; None: as many as the axis has room for.
    """

    leaf: str
    axis: int = -1
    width: int = 1
    units: int | None = None


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Owner:
    """The units that a leaf's numbers, or some of them, belong to, of a shape that broadcasts to the leaf's.

    They are of one group, and lie along an axis, if it isn't None, with `width` indices of a unit next to each other.
    """

    units: Int[np.ndarray, " ..."]
    axis: int | None = None
    width: int = 1
    of_group: int = 0


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """Units that fail as a whole, in groups such as layers: unit u of group g is number `offsets[g] + u`.

    Attributes:
        kind: the word for a unit in the plural, as "neurons".
        owners: for each leaf of the parameters, in the order of `jax.tree_util`, which of its numbers belong to whom.
    """

    kind: str
    groups: tuple[str, ...]
    sizes: tuple[int, ...]
    owners: tuple[tuple[Owner, ...], ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """Returns the number of all units."""
        return sum(self.sizes)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Returns for each group the number of its first unit."""
        return tuple(int(offset) for offset in np.cumsum((0, *self.sizes[:-1])))

    @property
    def group_of(self) -> Int[np.ndarray, " units"]:
        """Returns for each unit the number of its group."""
        return np.repeat(np.arange(len(self.sizes), dtype=np.int32), self.sizes)

    def name(self, unit: int) -> str:
        """Returns a unit's name: its group's, and its number in it unless it is alone there."""
        group = int(self.group_of[unit])
        return self.groups[group] + (f"[{unit - self.offsets[group]}]" if self.sizes[group] > 1 else "")

    def group(self, name: str) -> slice:
        """Returns the numbers of the units of a group; of all units for the name ""."""
        if not name:
            return slice(0, self.count)
        if name not in self.groups:
            raise ValueError(f"group is {name!r}, but must be one of {', '.join(self.groups)}{near(name, self.groups)}"
                             "; name a group that the parts have")  # fmt: skip
        number = self.groups.index(name)
        return slice(self.offsets[number], self.offsets[number] + self.sizes[number])

    def masks(self, hit: Bool[Array, " units"]) -> list[Bool[Array, " ..."] | None]:
        """Returns for each leaf which numbers the hit units own, of a shape that broadcasts to it; None: no number."""
        return [functools.reduce(operator.or_, [hit[owner.units] for owner in owners]) if owners else None
                for owners in self.owners]  # fmt: skip

    def alone(self, leaf: int) -> Parts:
        """Returns the same units, as far as they lie in one leaf, which is then the only one."""
        return dataclasses.replace(self, owners=self.owners[leaf : leaf + 1], shapes=self.shapes[leaf : leaf + 1])


def drawn(parts: Parts, key: PRNGKeyArray, count: int | Int[Array, ""], group: str = "") -> Bool[Array, " units"]:
    """Returns which units are hit: so many of a group, or of all, each set of them as likely.

    With the same key the units of a smaller count are among those of a larger one.
    """
    among = parts.group(group)
    order = jax.random.permutation(key, among.stop - among.start)
    return jnp.zeros(parts.count, bool).at[among].set(order < count)


def counted(parts: Parts, share: float, group: str = "") -> int:
    """Returns how many units of a group, or of all, are a share of them: the nearest number, halves upwards."""
    among = parts.group(group)
    return math.floor(share * (among.stop - among.start) + 0.5)
