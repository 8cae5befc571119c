"""The leaves of a group's gradients joined into few buffers, so that a rule is few operators and one exchange.

    leaves [N, a, b], [N, c], …  ─▶  buffer [N, N, size]  ─▶  rule  ─▶  [N, size]  ─▶  leaves [a, b], [c], …

Cut along its first dimension a buffer has each replica's gradient on its own device, as it was computed. Cut along the
second one each device has a part of all replicas', which is all that a rule of coordinates needs: from one to the other
is an all-to-all, and from the parts of the result to the whole an all-gather, together as many bytes as an all-reduce.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu._util.jax_api import bound, core
from alpa_dejavu.training._scope import groups_of

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PyTree, PyTreeDef

    from alpa_dejavu.training._scope import Loss, StageOf
    from alpa_dejavu.training.robust._arrays import Gradient, Gradients, Rows


@final
@dataclasses.dataclass(frozen=True)
class Buffers:
    """Which leaves of a pytree lie in which buffer of which group, as the numbers of leaves; if leaves aren't joined,
    each is a buffer of its own shape. Shapes are without the dimension of replicas.
    """

    replicas: int
    tree: PyTreeDef
    shapes: tuple[tuple[int, ...], ...]
    groups: dict[str, tuple[tuple[int, ...], ...]]
    joined: bool

    @classmethod
    def of(
        cls, params: PyTree, replicas: int, scope: str, stage_of: StageOf | None, joined: bool, staged: bool
    ) -> Buffers:
        """Returns those of parameters, or of anything of their shapes and types, whose groups are by `groups_of`.

        Where leaves of one type are `joined`, and it is `staged`, no buffer has leaves of several stages.
        """
        leaves, tree = jax.tree.flatten(params)
        groups = groups_of(params, scope, stage_of)
        stages = groups_of(params, "stage", stage_of) if staged else groups
        numbers: dict[str, dict[object, list[int]]] = {}
        for number, (group, stage, leaf) in enumerate(zip(groups, stages, leaves, strict=True)):
            key: object = (stage, jnp.result_type(leaf)) if joined else number
            numbers.setdefault(group, {}).setdefault(key, []).append(number)
        groups_of_buffers = {group: tuple(map(tuple, buffers.values())) for group, buffers in numbers.items()}
        return cls(replicas, tree, tuple(jnp.shape(x) for x in leaves), groups_of_buffers, joined)

    def filled(self, gradients: Gradients) -> dict[str, list[Rows]]:
        """Returns each group's buffers [N, ...] of a pytree with leaves [N, ...]."""
        leaves = jax.tree.leaves(gradients)
        return {group: [self._buffer([leaves[i] for i in buffer]) for buffer in buffers]
                for group, buffers in self.groups.items()}  # fmt: skip

    def emptied(self, results: dict[str, Sequence[Float[Array, " ..."]]]) -> Gradient:
        """Returns the pytree of the buffers that rules made, without the dimension of replicas."""
        leaves: list[Array] = [None] * len(self.shapes)
        for group, buffers in self.groups.items():
            for numbers, values in zip(buffers, results[group], strict=True):
                if not self.joined:
                    leaves[numbers[0]] = values
                    continue
                sizes = [math.prod(self.shapes[i]) for i in numbers]
                ends = np.cumsum(sizes).tolist()
                flat = values.reshape(-1)
                for i, end, size in zip(numbers, ends, sizes, strict=True):
                    leaves[i] = flat[end - size : end].reshape(self.shapes[i])
        return jax.tree.unflatten(self.tree, leaves)

    def _buffer(self, leaves: list[Rows]) -> Rows:
        if not self.joined:
            return leaves[0]
        rows = [x.reshape(len(x), -1) for x in leaves]
        missing = -sum(x.shape[1] for x in rows) % self.replicas
        if missing:
            rows.append(jnp.zeros((len(rows[0]), missing), rows[0].dtype))
        return jnp.concatenate(rows, axis=1).reshape(len(rows[0]), self.replicas, -1)


def loss_at_offsets(
    loss: Loss, params: PyTree, offsets: PyTree, batch: PyTree, factor: float = 1.0
) -> Float[Array, ""]:
    """Returns the loss of parameters plus a factor times offsets, pytrees of the same shapes, on a batch."""
    closed = jax.make_jaxpr(loss)(params, batch)
    leaves, moves = jax.tree.leaves(params), jax.tree.leaves(offsets)
    own = closed.jaxpr.invars[: len(leaves)]
    moved = {var: (leaf, move) for var, leaf, move in zip(own, leaves, moves, strict=True)}
    values = dict(zip(closed.jaxpr.invars[len(leaves) :], jax.tree.leaves(batch), strict=True))
    values.update(zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def read(var: core.Var | core.Literal) -> Array:
        if isinstance(var, core.Literal):
            return var.val
        # Anew at each use, as a parameter of several layers would be read in each.
        if var in moved:
            leaf, move = moved[var]
            return jnp.add(leaf, move if factor == 1 else factor * move)
        return values[var]

    for eqn in closed.jaxpr.eqns:
        values.update(zip(eqn.outvars, bound(eqn, map(read, eqn.invars)), strict=True))
    (result,) = map(read, closed.jaxpr.outvars)
    return result
