"""Evaluators: where the true gradients of several points are computed; each has one method.

In: points [N, ...], a batch for each, and how many of them matter.
Out: losses and gradients. Alpa's is `alpa_dejavu.alpa.side_by_side.AlpaGradients`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_dejavu._util.units import seconds
from alpa_dejavu.problem import checks
from alpa_dejavu.training._ray import Actors
from alpa_dejavu.training._scope import parts_of

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PyTree

    from alpa_dejavu.training._scope import Loss

    Points: TypeAlias = PyTree[Float[Array, "N ..."]]

__all__ = ["Evaluated", "Evaluator", "OneByOne", "RayWorkers", "Sharded", "Vmapped"]


class Evaluated(NamedTuple):
    """The losses and gradients of N points.

    Attributes:
        noise: for each leaf the variance of the gradient, all its coordinates together; None: it isn't known.
        has_arrived: which points are there at all; None: all.
    """

    losses: Float[Array, " N"]
    gradients: Points
    noise: PyTree[Float[Array, " N"]] | None = None
    has_arrived: Bool[Array, " N"] | Bool[np.ndarray, " N"] | None = None


class Evaluator(abc.ABC):
    """A place where the gradients of N points are computed."""

    @abc.abstractmethod
    def evaluate(self, points: Points, batches: PyTree, count: Int[Array, ""]) -> Evaluated:
        """Returns the losses and gradients at points, of which `count` matter, from the first on: others needn't be
        evaluated. Batches have leaves [N, ...], a batch for each point; None: the loss needs none.
        """


def gradient_of_point(loss: Loss, replicas: int) -> Callable[[PyTree, PyTree], tuple[PyTree, ...]]:
    """Returns a function of a point and its batch to the loss, the gradient, and the gradient's variance by leaf, as
    several replicas of a part of the batch each estimate it.
    """
    checks.count("evaluator", "replicas", replicas)
    if replicas == 1:
        return lambda point, batch: (*jax.value_and_grad(loss)(point, batch), None)

    def of_parts(point: PyTree, batch: PyTree) -> tuple[PyTree, ...]:
        losses, of_replicas = jax.vmap(jax.value_and_grad(loss), (None, 0))(point, parts_of(batch, replicas))
        mean = jax.tree.map(lambda g: jnp.mean(g, axis=0), of_replicas)
        noise = jax.tree.map(
            lambda g, m: jnp.sum((g - m).astype(jnp.float32) ** 2) / (replicas * (replicas - 1)), of_replicas, mean
        )
        return jnp.mean(losses), mean, noise

    return of_parts


@dataclasses.dataclass(frozen=True, eq=False)
class _OfLoss(Evaluator):
    """An evaluator of a loss; each batch is cut into `replicas` parts to estimate the gradient's noise, 1: not."""

    loss: Loss
    replicas: int = 1


@final
class Vmapped(_OfLoss):
    """All points side by side in one program, by `vmap`; loss and replicas are those of `OneByOne`."""

    def evaluate(self, points: Points, batches: PyTree, count: Int[Array, ""]) -> Evaluated:
        return Evaluated(*self._program(points, batches))

    @functools.cached_property
    def _program(self) -> Callable[[Points, PyTree], tuple[PyTree, ...]]:
        return jax.jit(jax.vmap(gradient_of_point(self.loss, self.replicas)))


@final
class OneByOne(_OfLoss):
    """One point after another: no faster than steps, with the memory of one; on CPUs often faster than `Vmapped`.

    Gradients of points that don't matter are zeros, their losses NaN.
    """

    def evaluate(self, points: Points, batches: PyTree, count: Int[Array, ""]) -> Evaluated:
        return Evaluated(*self._program(points, batches, count))

    @functools.cached_property
    def _program(self) -> Callable[[Points, PyTree, Int[Array, ""]], tuple[PyTree, ...]]:
        gradient = gradient_of_point(self.loss, self.replicas)

        def at_point(carry: None, row: tuple[PyTree, ...]) -> tuple[None, tuple[PyTree, ...]]:
            place, count, point, batch = row
            shapes = jax.eval_shape(gradient, point, batch)

            def nothing() -> tuple[PyTree, ...]:
                loss, *others = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
                return (loss * np.nan, *others)

            return carry, jax.lax.cond(place < count, lambda: gradient(point, batch), nothing)

        def at_points(points: Points, batches: PyTree, count: Int[Array, ""]) -> tuple[PyTree, ...]:
            n = jax.tree.leaves(points)[0].shape[0]
            places = jnp.arange(n)
            return jax.lax.scan(at_point, None, (places, jnp.broadcast_to(count, n), points, batches))[1]

        return jax.jit(at_points)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Sharded(Evaluator):
    """Points over several devices of this process (None: all), as many on each.

    What comes back is where the points were, so that the step goes on there. It isn't for use inside of `jit`.
    """

    loss: Loss
    devices: Sequence[jax.Device] | None = None
    replicas: int = 1

    def evaluate(self, points: Points, batches: PyTree, count: Int[Array, ""]) -> Evaluated:
        sharding, program = self._program
        first = jax.tree.leaves(points)[0]
        n, places = first.shape[0], sharding.mesh.size
        if n % places:
            raise ValueError(f"parallel is {n}, but must divide by the {places} devices; give fewer devices, "
                             "or another number of points")  # fmt: skip
        losses, gradients, noise = program(*jax.device_put((points, batches), sharding))
        gradients = jax.tree.map(lambda g, p: jax.device_put(g, p.sharding), gradients, points)
        # Small ones go where a program of the points takes them.
        losses, noise = jax.tree.map(np.asarray, (losses, noise))
        return Evaluated(losses, gradients, noise)

    @functools.cached_property
    def _program(self) -> tuple[NamedSharding, Callable[[Points, PyTree], tuple[PyTree, ...]]]:
        mesh = Mesh(np.asarray(self.devices or jax.devices()), ("points",))
        sharding = NamedSharding(mesh, PartitionSpec("points"))
        return sharding, jax.jit(jax.vmap(gradient_of_point(self.loss, self.replicas)), out_shardings=sharding)


_log = logging.getLogger("alpa_dejavu")


@final
class RayWorkers(Evaluator):
    """Points on workers of the connected Ray cluster, as many at a time as there are workers.

    It is a context manager, whose workers are gone at the end of the block. It isn't for use inside of `jit`. Points
    and gradients are sent through Ray's object store: a step takes at least the time of that.
    """

    def __init__(
        self, loss: Loss, workers: int, options: Mapping[str, Any] | None = None,
        replicas: int = 1, patience_s: float | None = None,
    ) -> None:  # fmt: skip
        """Starts so many workers, by Ray's options, such as `num_gpus`: a CPU each by default. Points that
        haven't arrived after `patience_s` are left out; None: they are waited for.

        Raises:
            RuntimeError: Ray isn't installed, or this process isn't connected to it.
            ValueError: the cluster hasn't what so many workers need.
        """
        checks.count("ray workers", "workers", workers)
        if patience_s is not None:
            checks.positive("ray workers", "patience_s", patience_s)
        asked = {"num_cpus": 1, **(options or {})}
        self._actors = Actors(_GradientWorker, [loss, replicas], [asked] * workers)
        self._patience_s, self._replicas, self.deaths = patience_s, replicas, 0

    def __enter__(self) -> RayWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the workers."""
        self._actors.stop()

    def evaluate(self, points: Points, batches: PyTree, count: Int[Array, ""]) -> Evaluated:
        """Returns the gradients of the points that matter; those that haven't arrived are zeros."""
        points, batches = jax.device_get((points, batches))
        n = jax.tree.leaves(points)[0].shape[0]
        running = {}
        for place in range(int(count)):
            point, batch = (jax.tree.map(lambda x, i=place: x[i], tree) for tree in (points, batches))
            actor = place % len(self._actors)
            running[self._actors[actor].gradient.remote(point, batch)] = place, actor
        answers: dict[int, tuple[PyTree, ...]] = {}
        late = self._actors.ray.wait(list(running), num_returns=len(running), timeout=self._patience_s)[1]
        for done, (place, actor) in running.items():
            if done in late:
                assert self._patience_s is not None, "without a limit nothing is late"
                waited = seconds(self._patience_s)
                _log.warning("point %d hasn't arrived after %s: it is left out of the step", place, waited)
                self._actors.replace(actor)
                continue
            answer = self._actors.answer(done, actor, f"point {place} is left out of the step")
            if answer is None:
                self.deaths += 1
            else:
                answers[place] = answer
        return self._evaluated(answers, points, n)

    def _evaluated(self, answers: Mapping[int, tuple[PyTree, ...]], points: Points, n: int) -> Evaluated:
        losses = np.full(n, np.nan, np.float32)
        gradients = jax.tree.map(np.zeros_like, points)
        noise = jax.tree.map(lambda p: np.zeros(n, np.float32), points) if self._replicas > 1 else None
        for place, (loss, gradient, own) in answers.items():
            losses[place] = loss
            for kept, new in ((gradients, gradient), (noise, own)):
                for leaf, computed in zip(*map(jax.tree.leaves, (kept, new)), strict=True):
                    leaf[place] = computed
        return Evaluated(losses, gradients, noise, np.isin(np.arange(n), list(answers)))


@final
class _GradientWorker:
    """A worker in a Ray actor, which computes gradients."""

    def __init__(self, loss: Loss, replicas: int) -> None:
        self._program = jax.jit(gradient_of_point(loss, replicas))

    def gradient(self, point: PyTree, batch: PyTree) -> tuple[PyTree, ...]:
        """Returns the loss, the gradient and its noise, as numpy arrays."""
        return jax.device_get(self._program(point, batch))
