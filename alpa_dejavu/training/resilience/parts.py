"""Parts of a model, which fail as a whole: for each number of its parameters, which unit owns it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.near_names import near

__all__ = ["Axis", "Owner", "Parts", "counted", "drawn", "paths_of"]


@final
@dataclasses.dataclass(frozen=True)
class Axis:
    """An axis of an array of parameters along which units lie: index i belongs to unit (i // width) % units.

    Attributes:
        leaf: the array's path, as "hidden/kernel".
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
    """A leaf's numbers, or some of them, as belonging to units.

    Attributes:
        units: the number of the unit that each index belongs to, of a shape that broadcasts to the leaf's.
        axis: the axis along which units lie, from the start; None: they don't lie along one.
        width, of_group: indices of a unit next to each other, and the group that all units here are of.
    """

    units: NDArray[np.int32]
    axis: int | None = None
    width: int = 1
    of_group: int = 0


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """Units that fail as a whole, in groups such as layers: unit u of group g is number `offsets[g] + u`.

    Attributes:
        kind: the word for a unit in the plural, as "neurons".
        groups: the name of each group.
        sizes: how many units each group has.
        owners: for each leaf of the parameters, in the order of `jax.tree_util`, which of its numbers belong to whom.
        shapes: the shape of each leaf.
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
    def group_of(self) -> NDArray[np.int32]:
        """Returns for each unit the number of its group, shape (count,)."""
        return np.repeat(np.arange(len(self.sizes), dtype=np.int32), self.sizes)

    def name(self, unit: int) -> str:
        """Returns a unit's name: its group's, and its number in it unless it is alone there."""
        group = int(self.group_of[unit])
        return self.groups[group] + (f"[{unit - self.offsets[group]}]" if self.sizes[group] > 1 else "")

    def group(self, name: str) -> slice:
        """Returns the numbers of the units of a group; of all units for the name "".

        Raises:
            ValueError: there is no such group.
        """
        if not name:
            return slice(0, self.count)
        if name not in self.groups:
            raise ValueError(f"group is {name!r}, but must be one of {', '.join(self.groups)}{near(name, self.groups)}"
                             "; name a group that the parts have")  # fmt: skip
        number = self.groups.index(name)
        return slice(self.offsets[number], self.offsets[number] + self.sizes[number])

    def masks(self, hit: jax.Array) -> list[Any]:
        """Returns for each leaf which numbers the hit units own, of a shape that broadcasts to it; None: no number.

        Args:
            hit: which units are hit, shape (count,), bool.
        """
        leaf_masks: list[Any] = []
        for owners in self.owners:
            mask = None
            for owner in owners:
                mask = hit[owner.units] if mask is None else mask | hit[owner.units]
            leaf_masks.append(mask)
        return leaf_masks

    def alone(self, leaf: int) -> Parts:
        """Returns the same units, as far as they lie in one leaf, which is then the only one."""
        return dataclasses.replace(self, owners=self.owners[leaf : leaf + 1], shapes=self.shapes[leaf : leaf + 1])


def paths_of(tree: Any) -> list[str]:
    """Returns the path of each leaf of a pytree, as "hidden/kernel", in the order of `jax.tree_util`."""
    entries = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return ["/".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)
            for path in entries]  # fmt: skip


def drawn(parts: Parts, key: jax.Array, count: Any, group: str = "") -> Any:
    """Returns which units are hit: so many of a group, or of all, each set of them as likely, shape (count,), bool.

    With the same key the units of a smaller count are among those of a larger one.
    """
    among = parts.group(group)
    order = jax.random.permutation(key, among.stop - among.start)
    return jnp.zeros(parts.count, bool).at[among].set(order < count)


def counted(parts: Parts, share: float, group: str = "") -> int:
    """Returns how many units of a group, or of all, are a share of them: the nearest number, halves upwards."""
    among = parts.group(group)
    return math.floor(share * (among.stop - among.start) + 0.5)
