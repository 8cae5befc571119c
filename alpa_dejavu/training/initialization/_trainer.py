"""Trains candidates side by side on one device, by one program that is mapped over them.

Its width may change how sums are rounded, so widths follow from the candidates alone, never from the workers.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu.training.initialization._layout import RacedModel, StateLayout, layout_of
from alpa_dejavu.training.initialization._store import StateStore

if TYPE_CHECKING:
    from jax.stages import Wrapped
    from jaxtyping import Array, Float, PyTree, Shaped

    from alpa_dejavu.training.initialization._layout import InitFn, Leaves, Parameters, TrainStep


@final
@dataclasses.dataclass(frozen=True)
class TrainingTask:
    """A task for a worker: to train a few candidates side by side for some steps, from the first one on.

    Its program is compiled for `width` candidates; places left over repeat the last candidate.
    """

    numbers: tuple[int, ...]
    width: int
    first_step: int
    num_steps: int


@final
@dataclasses.dataclass(frozen=True, eq=False)
class TaskOutcome:
    """The outcome of a training task: the N candidates' new states, and the losses and norms of each step.

    Norms of gradients are NaN where the training step doesn't say them; those of weights are after each step. `lost`
    says why there is no outcome, or "".
    """

    task: TrainingTask
    states: Leaves
    losses: Float[np.ndarray, "N steps"]
    gradients: Float[np.ndarray, "N steps"]
    weights: Float[np.ndarray, "N steps"]
    lost: str = ""

    @classmethod
    def of_nothing(cls, task: TrainingTask, why: str) -> TaskOutcome:
        nothing = np.zeros((len(task.numbers), 0))
        return cls(task, (), nothing, nothing, nothing, why)


class Runner(abc.ABC):
    """An interface of runners, which have the tasks of training candidates done, by workers or in this process."""

    restarts: int = 0
    """So many tasks were begun again, because their worker had died."""

    def fitting(self, lanes: int, memory_bytes: float | None) -> tuple[int, str]:
        """Returns how many candidates (of `lanes`) fit into memory side by side, and a note if it is fewer."""
        return lanes, ""

    @abc.abstractmethod
    def outcomes(self, next_task: Callable[[], TrainingTask | None]) -> Iterator[TaskOutcome]:
        """Asks `next_task` for a task whenever a worker is free, and yields each task's outcome as it comes; a free
        worker asks again after each outcome. It ends when no task is being done and there is no other.
        """


@final
class Trainer:
    """A trainer, which trains candidates side by side on one device by a compiled, vectorised (`jax.vmap`) training
    step.

    It compiles once for each width and shape of batches; trainers of the same functions share what is compiled.
    """

    def __init__(self, model: RacedModel) -> None:
        self._model = model
        functions = model.init_fn, model.train_step, model.parameters
        programs = _programs if all(isinstance(part, Hashable) for part in functions) else _programs.__wrapped__
        self.layout, self._start, self._program = programs(*functions)

    def start(self, seed: int, number: int) -> Leaves:
        """Returns the arrays of the training state in which the model itself begins, by seed and candidate."""
        import jax

        leaves = self._start(jax.random.fold_in(jax.random.PRNGKey(seed), number))
        return tuple(np.asarray(leaf) for leaf in leaves)

    def train(self, task: TrainingTask, states: Leaves) -> TaskOutcome:
        """Trains the N candidates of a task from training states, whose arrays have shape (N, ...)."""
        import jax

        count = len(task.numbers)
        leaves = [_widened(leaf, task.width) for leaf in states]
        figures = []
        for step in range(task.first_step, task.first_step + task.num_steps):
            leaves, row = self._program(leaves, self._model.batch(step))
            figures.append(row)
        rows = np.asarray(jax.device_get(figures), np.float64).reshape(task.num_steps, task.width, 3)
        losses, gradients, weights = (rows[:, :count, n].T.copy() for n in range(3))
        return TaskOutcome(task, tuple(np.array(leaf)[:count] for leaf in leaves), losses, gradients, weights)

    def memory_bytes(self, width: int) -> int:
        """Returns the bytes that training `width` candidates at once takes, by the compiler, else estimated."""
        import jax

        leaves = [jax.ShapeDtypeStruct((width, *leaf.shape), leaf.dtype) for leaf in self.layout.leaves]
        analysis = self._program.lower(leaves, self._model.batch(0)).compile().memory_analysis()
        if analysis is None:
            return 4 * width * self.layout.num_bytes
        return int(analysis.argument_size_in_bytes + analysis.output_size_in_bytes + analysis.temp_size_in_bytes)


@functools.lru_cache(maxsize=4)
def _programs(
    init_fn: InitFn, train_step: TrainStep, parameters: Parameters | None
) -> tuple[StateLayout, Wrapped, Wrapped]:
    """Returns the states' layout, and the compiled start and step; the next run of the same functions has them too."""
    import jax

    layout = layout_of(init_fn, parameters)
    step = functools.partial(_step, train_step, layout)
    start = jax.jit(lambda key: jax.tree.leaves(init_fn(key)))
    return layout, start, jax.jit(jax.vmap(step, in_axes=(0, None)))


def _step(
    train_step: TrainStep, layout: StateLayout, leaves: list[Array], batch: PyTree
) -> tuple[list[Array], Float[Array, " 3"]]:
    """Returns the leaves after one candidate's step, and its loss with the norms of gradient and parameters."""
    import jax
    import jax.numpy as jnp

    state, loss, *norm = train_step(layout.structure.unflatten(leaves), batch)
    new = jax.tree.leaves(state)
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


def _widened(leaf: Shaped[np.ndarray, "N ..."], width: int) -> Shaped[np.ndarray, "width ..."]:
    missing = width - len(leaf)
    return np.concatenate([leaf, np.repeat(leaf[-1:], missing, axis=0)]) if missing else leaf


class DoesNotFitError(ValueError):
    """An error that says that a device's memory is too small to train even one candidate."""


def fitting_lanes(trainer: Trainer, lanes: int, memory_bytes: float | None) -> tuple[int, str]:
    """Returns how many candidates can be trained side by side in a device's memory, `lanes` at most, and a note if it
    is fewer; raises DoesNotFitError if not even one fits.

    The memory is what jax says of this process's first device, if it isn't given; all fit where jax says nothing.
    """
    import jax

    limit = memory_bytes
    if limit is None:
        limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    if limit is None:
        return lanes, ""
    fitting = lanes
    while (needed := trainer.memory_bytes(fitting)) > limit:
        if fitting == 1:
            raise DoesNotFitError(
                f"one candidate takes {units.size(needed)}, but the device has {units.size(limit)}; make the model or "
                "the batches smaller, or give the right memory_bytes"
            )
        fitting //= 2
    if fitting == lanes:
        return lanes, ""
    return fitting, f"{lanes} candidates side by side don't fit in {units.size(limit)} of memory, {fitting} do"


@final
class LocalRunner(Runner):
    """A runner that trains candidates in this process, on its default device, without workers."""

    def __init__(self, trainer: Trainer, store: StateStore) -> None:
        self._trainer, self._store = trainer, store

    def fitting(self, lanes: int, memory_bytes: float | None) -> tuple[int, str]:
        return fitting_lanes(self._trainer, lanes, memory_bytes)

    def outcomes(self, next_task: Callable[[], TrainingTask | None]) -> Iterator[TaskOutcome]:
        while (task := next_task()) is not None:
            yield self._trainer.train(task, self._store.side_by_side(task.numbers))
