"""Trains candidates side by side on one device: one program, mapped over them.

Its width may change how sums are rounded, so widths follow from the candidates alone, never from the workers.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from alpa_dejavu.initialization._layout import Leaves, layout_of
from alpa_dejavu.initialization._model import Model
from alpa_dejavu.initialization._task import Outcome, Task


@final
class Trainer:
    """Compiles when it first needs to, once for each width and shape of batches."""

    def __init__(self, model: Model) -> None:
        import jax

        self._model = model
        self.layout = layout_of(model.init_fn, model.parameters)
        self._start = jax.jit(lambda key: jax.tree_util.tree_leaves(model.init_fn(key)))
        self._program = jax.jit(jax.vmap(self._step, in_axes=(0, None)))

    def start(self, seed: int, number: int) -> Leaves:
        """The model's own start of a candidate: its key is folded from the seed and its number."""
        import jax

        leaves = self._start(jax.random.fold_in(jax.random.PRNGKey(seed), number))
        return tuple(np.asarray(leaf) for leaf in leaves)

    def train(self, task: Task, states: Leaves) -> Outcome:
        """Does a task, from states of shape (N, ...)."""
        import jax

        count = len(task.numbers)
        leaves = [_widened(leaf, task.width) for leaf in states]
        said = []
        for step in range(task.first_step, task.first_step + task.num_steps):
            after, row = self._program(leaves, self._model.batch(step, task.batch_rows))
            said.append(row)
            leaves = leaves if task.is_measure else after
        rows = np.asarray(jax.device_get(said), np.float64).reshape(task.num_steps, task.width, 3)
        losses, gradients, weights = (rows[:, :count, n].T.copy() for n in range(3))
        return Outcome(task, tuple(np.array(leaf)[:count] for leaf in leaves), losses, gradients, weights)

    def memory_bytes(self, width: int) -> int:
        """What the program of a width takes of a device, by its compiler; an estimate where that doesn't say."""
        import jax

        leaves = [jax.ShapeDtypeStruct((width, *leaf.shape), leaf.dtype) for leaf in self.layout.leaves]
        said = self._program.lower(leaves, self._model.batch(0)).compile().memory_analysis()
        if said is None:
            return 4 * width * self.layout.num_bytes
        return int(said.argument_size_in_bytes + said.output_size_in_bytes + said.temp_size_in_bytes)

    def _step(self, leaves: list[Any], batch: Any) -> tuple[list[Any], Any]:
        """One candidate's step; the row is its loss, and the norms of gradient and parameters."""
        import jax
        import jax.numpy as jnp

        state, loss, *norm = self._model.train_step(self.layout.structure.unflatten(leaves), batch)
        new = jax.tree_util.tree_leaves(state)
        weights = [new[place] for place in self.layout.places if self.layout.leaves[place].is_float]
        squares = sum(jnp.sum(jnp.square(weight.astype(jnp.float32))) for weight in weights)
        gradient = norm[0].astype(jnp.float32) if norm else jnp.float32(jnp.nan)
        return new, jnp.stack([loss.astype(jnp.float32), gradient, jnp.sqrt(squares)])


def width_of(count: int, lanes: int) -> int:
    """Lanes for so many candidates: a power of two, so that few programs are compiled, but no more than there are.

    >>> [width_of(count, 6) for count in range(1, 7)]
    [1, 2, 4, 4, 6, 6]
    """
    return min(lanes, 1 << (count - 1).bit_length())


def _widened(leaf: Any, width: int) -> Any:
    missing = width - len(leaf)
    return np.concatenate([leaf, np.repeat(leaf[-1:], missing, axis=0)]) if missing else leaf
