"""A pipeline's stage, a replica or an expert that is lost while training goes on.

In: a model that is trained, and who doesn't answer from when to when. Out: losses along the training, by which it is
told how many steps it is behind one without an outage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu.problem import checks
from alpa_dejavu.training._scope import paths_of
from alpa_dejavu.training.resilience.faults import Removed
from alpa_dejavu.training.resilience.parts import Owner, Parts

if TYPE_CHECKING:
    import optax
    from jaxtyping import Array, Bool, Float, Int, PyTree

    from alpa_dejavu.training.resilience._subject import Data, Judge, Model

__all__ = ["Outage", "OutageTraining", "disturbed", "stage_parts"]


@final
@dataclasses.dataclass(frozen=True)
class Outage:
    """A time for which somebody doesn't answer.

    Attributes:
        unit: the number of the part, such as a stage or an expert, whose answer is missing: its layers pass their
            input on where they are residual blocks, and aren't trained. None: no part.
        replica: the number of the replica whose gradients are missing; None: no replica.
        first_step, num_steps: from which step on, and for how many.
    """

    unit: int | None
    first_step: int
    num_steps: int
    replica: int | None = None

    def __post_init__(self) -> None:
        checks.not_negative("outage", "first_step", self.first_step)
        checks.count("outage", "num_steps", self.num_steps)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class OutageTraining:
    """The losses along a training, with or without an outage.

    Attributes:
        loss: of the whole model on held-out data.
        answered: likewise, of the model as it answers at that moment, without what is lost.
    """

    steps: Int[np.ndarray, " looks"]
    loss: Float[np.ndarray, " looks"]
    answered: Float[np.ndarray, " looks"]

    def behind(self, other: OutageTraining) -> float:
        """Returns how many steps earlier another training had the loss that this one ends with, which is 0 at least.

        Between looks the other's least loss so far is taken to fall linearly.
        """
        least = np.minimum.accumulate(other.loss)
        if self.loss[-1] <= least[-1]:
            return 0.0
        reached = float(np.interp(-self.loss[-1], -least, other.steps))
        return float(self.steps[-1]) - reached


def stage_parts(params: PyTree, stages: Mapping[str, Sequence[str]]) -> Parts:
    """Returns a pipeline's stages as parts, each of which is all arrays of its blocks.

    Stages are, by name, the paths of their blocks, as "blocks/3"; blocks in none aren't lost.
    """
    paths = paths_of(params)
    names = list(stages)
    belongs: dict[str, int] = {}
    for number, blocks in enumerate(stages.values()):
        for block in blocks or ("",):
            below = [path for path in paths if path == block or path.startswith(f"{block}/")] if block else []
            if not below:
                raise ValueError(f"stages has {list(blocks)} of {names[number]}, but must be of the paths "
                                 f"{', '.join(paths)}; name blocks of the model")  # fmt: skip
            belongs.update(dict.fromkeys(below, number))
    shapes = tuple(tuple(np.shape(leaf)) for leaf in jax.tree.leaves(params))
    owners = tuple(
        (Owner(np.full((1,) * len(shape), belongs[path], np.int32)),) if path in belongs else ()
        for path, shape in zip(paths, shapes, strict=True)
    )
    return Parts("stages", tuple(names), (1,) * len(names), owners, shapes)


def disturbed(
    apply_fn: Model,
    loss: Judge,
    params: PyTree,
    data: Data,
    held_out: Data,
    optimizer: optax.GradientTransformation,
    parts: Parts,
    outage: Outage | None = None,
    *,
    steps: int,
    batch: int = 32,
    replicas: int = 1,
    looks: int = 40,
    seed: int = 0,
) -> OutageTraining:
    """Returns the losses of a training in which a part or a replica doesn't answer for a while.

    A part that is lost isn't in the model: gradients are those of the rest, and its own numbers stay as they are; the
    moments of the optimizer for them decay. Once it is back it goes on with these. Of replicas, the mean is taken over
    those that answer.

    Args:
        apply_fn, loss, params: the model, what its outputs and targets lose in the mean, and where it begins.
        data: inputs and targets to train on; batches are drawn from them with replacement.
        batch: samples of a step, a multiple of `replicas`.
        looks: how often the held-out loss is computed at most.
        seed: of the batches, which are the same with any outage.

    Raises:
        ValueError: there is no such part or replica, or the only replica is lost; before anything is trained.
    """
    checks.count("disturbed", "steps", steps)
    _check(parts, outage, replicas, batch)
    inputs, targets = (jax.tree.map(jnp.asarray, part) for part in data)
    judged = tuple(jax.tree.map(jnp.asarray, part) for part in held_out)
    hit = np.arange(parts.count) == (-1 if outage is None or outage.unit is None else outage.unit)
    lost = np.arange(replicas) == (-1 if outage is None or outage.replica is None else outage.replica)

    def without(tree: PyTree, is_out: Bool[Array, ""]) -> PyTree:
        return Removed().faulty(tree, parts, jnp.asarray(hit) & is_out, jax.random.PRNGKey(0))

    def step(carry: tuple[PyTree, PyTree], number: Int[Array, ""]) -> tuple[tuple[PyTree, PyTree], None]:
        params, state = carry
        is_out = _is_out(outage, number)
        rows = jax.random.randint(jax.random.fold_in(jax.random.PRNGKey(seed), number), (batch,), 0, len(targets))

        def mean_loss(params: PyTree) -> Float[Array, ""]:
            model = without(params, is_out)
            losses = jax.vmap(lambda some: loss(apply_fn(model, inputs[some]), targets[some]))(
                rows.reshape(replicas, -1)
            )
            weights = jnp.where(jnp.asarray(lost) & is_out, 0.0, 1.0)
            return jnp.sum(losses * weights) / jnp.sum(weights)

        updates, state = optimizer.update(jax.grad(mean_loss)(params), state, params)
        return (jax.tree.map(jnp.add, params, without(updates, is_out)), state), None

    @jax.jit
    def some_steps(carry: tuple[PyTree, PyTree], numbers: Int[Array, " steps"]) -> tuple[PyTree, PyTree]:
        return jax.lax.scan(step, carry, numbers)[0]

    @jax.jit
    def looked(params: PyTree, number: Int[Array, ""]) -> list[Float[Array, ""]]:
        models = params, without(params, _is_out(outage, number))
        return [loss(apply_fn(model, judged[0]), judged[1]) for model in models]

    every = max(1, -(-steps // looks))
    params = jax.tree.map(jnp.asarray, params)
    carry = params, optimizer.init(params)
    seen, losses_seen = [0], [looked(carry[0], 0)]
    for first in range(0, steps, every):
        numbers = np.arange(first, min(first + every, steps))
        carry = some_steps(carry, numbers)
        seen.append(int(numbers[-1]) + 1)
        losses_seen.append(looked(carry[0], numbers[-1]))
    losses = np.asarray(losses_seen, float)
    return OutageTraining(np.array(seen), losses[:, 0], losses[:, 1])


def _is_out(outage: Outage | None, number: int | Int[Array, ""]) -> Bool[Array, ""]:
    if outage is None:
        return jnp.asarray(False)
    number = jnp.asarray(number)
    return (number >= outage.first_step) & (number < outage.first_step + outage.num_steps)


def _check(parts: Parts, outage: Outage | None, replicas: int, batch: int) -> None:
    if batch < 1 or replicas < 1 or batch % replicas:
        raise ValueError(f"batch is {batch}, but must be a multiple of the {replicas} replicas; give another one")
    if outage is None:
        return
    if outage.unit is not None and outage.unit not in range(parts.count):
        raise ValueError(f"outage: unit is {outage.unit}, but must be of 0..{parts.count - 1}; name one of "
                         f"{parts.kind}")  # fmt: skip
    if outage.replica is not None and (replicas < 2 or outage.replica not in range(replicas)):
        raise ValueError(f"outage: replica is {outage.replica}, but must be one of two or more, 0..{replicas - 1}; "
                         "name another one")  # fmt: skip
