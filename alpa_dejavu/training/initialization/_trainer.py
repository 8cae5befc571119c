"""Trains candidates side by side on one device, by one program that is mapped over them.

Its width may change how sums are rounded, so widths follow from the candidates alone, never from the workers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, final

import numpy as np

from alpa_dejavu.training.initialization._layout import Layout, Leaves, Parameters, layout_of
from alpa_dejavu.training.initialization._model import Model
from alpa_dejavu.training.initialization._task import Outcome, Task

PROGRAMS = 4
"""So many models' programs are kept."""


@final
class Trainer:
    """A trainer, which trains candidates side by side on one device by a compiled, vectorised (`jax.vmap`) training
    step.

    It compiles once for each width and shape of batches; trainers of the same functions share what is compiled.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        given = model.init_fn, model.train_step, model.parameters, model.takes_rate
        programs = _programs if all(isinstance(one, Hashable) for one in given) else _programs.__wrapped__
        self.layout, self._start, self._program = programs(*given)

    def start(self, seed: int, number: int) -> Leaves:
        """Returns the arrays of the training state in which the model itself begins, for a candidate's number and a
        seed.
        """
        import jax

        leaves = self._start(jax.random.fold_in(jax.random.PRNGKey(seed), number))
        return tuple(np.asarray(leaf) for leaf in leaves)

    def train(self, task: Task, states: Leaves) -> Outcome:
        """Trains the N candidates of a task from training states, whose arrays have shape (N, ...), and returns the
        outcome.
        """
        import jax

        count = len(task.numbers)
        leaves = [_widened(leaf, task.width) for leaf in states]
        rates = (_widened(np.array(task.rates, np.float32), task.width),) if task.rates else ()
        said = []
        for step in range(task.first_step, task.first_step + task.num_steps):
            after, row = self._program(leaves, self._model.batch(step, task.batch_rows), *rates)
            said.append(row)
            leaves = leaves if task.is_measure else after
        rows = np.asarray(jax.device_get(said), np.float64).reshape(task.num_steps, task.width, 3)
        losses, gradients, weights = (rows[:, :count, n].T.copy() for n in range(3))
        return Outcome(task, tuple(np.array(leaf)[:count] for leaf in leaves), losses, gradients, weights)

    def memory_bytes(self, width: int) -> int:
        """Returns how many bytes of a device's memory training `width` candidates side by side takes, by the compiler's
        figures, else an estimate.
        """
        import jax

        leaves = [jax.ShapeDtypeStruct((width, *leaf.shape), leaf.dtype) for leaf in self.layout.leaves]
        rates = (jax.ShapeDtypeStruct((width,), np.float32),) if self._model.takes_rate else ()
        said = self._program.lower(leaves, self._model.batch(0), *rates).compile().memory_analysis()
        if said is None:
            return 4 * width * self.layout.num_bytes
        return int(said.argument_size_in_bytes + said.output_size_in_bytes + said.temp_size_in_bytes)


@functools.lru_cache(maxsize=PROGRAMS)
def _programs(
    init_fn: Callable[[Any], Any], train_step: Callable[..., Any], parameters: Parameters | None, takes_rate: bool
) -> tuple[Layout, Any, Any]:
    """Returns the states' layout, and the compiled start and step; the next run of the same functions has them too."""
    import jax

    layout = layout_of(init_fn, parameters)
    step = functools.partial(_step, train_step, layout)
    start = jax.jit(lambda key: jax.tree_util.tree_leaves(init_fn(key)))
    return layout, start, jax.jit(jax.vmap(step, in_axes=(0, None, 0) if takes_rate else (0, None)))


def _step(
    train_step: Callable[..., Any], layout: Layout, leaves: list[Any], batch: Any, *rate: Any
) -> tuple[list[Any], Any]:
    """Returns the leaves after one candidate's step, and its loss with the norms of gradient and parameters."""
    import jax
    import jax.numpy as jnp

    state, loss, *norm = train_step(layout.structure.unflatten(leaves), batch, *rate)
    new = jax.tree_util.tree_leaves(state)
    weights = [new[place] for place in layout.places if layout.leaves[place].is_float]
    squares = sum(jnp.sum(jnp.square(weight.astype(jnp.float32))) for weight in weights)
    gradient = norm[0].astype(jnp.float32) if norm else jnp.float32(jnp.nan)
    return new, jnp.stack([loss.astype(jnp.float32), gradient, jnp.sqrt(squares)])


def width_of(count: int, lanes: int) -> int:
    """Returns how many lanes a program that trains `count` candidates side by side, one in each lane, is compiled for:
    the next power of two, so that few programs are compiled, but at most `lanes`.

    >>> [width_of(count, 6) for count in range(1, 7)]
    [1, 2, 4, 4, 6, 6]
    """
    return min(lanes, 1 << (count - 1).bit_length())


def _widened(leaf: Any, width: int) -> Any:
    missing = width - len(leaf)
    return np.concatenate([leaf, np.repeat(leaf[-1:], missing, axis=0)]) if missing else leaf
