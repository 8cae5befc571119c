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
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_dejavu._util.units import seconds
from alpa_dejavu.problem import checks
from alpa_dejavu.training._ray import Actors
from alpa_dejavu.training._scope import parts_of

__all__ = ["Evaluated", "Evaluator", "OneByOne", "RayWorkers", "Sharded", "Vmapped"]


class Evaluated(NamedTuple):
    """The gradients of N points.

    Attributes:
        losses: shape [N].
        gradients: a pytree like the parameters, leaves [N, *shape].
        noise: for each leaf the variance of the gradient, all its coordinates together, shape [N]; None: it isn't
            known.
        has_arrived: which points are there at all, shape [N]; None: all.
    """

    losses: jax.Array
    gradients: Any
    noise: Any = None
    has_arrived: Any = None


class Evaluator(abc.ABC):
    """A place where the gradients of N points are computed."""

    @abc.abstractmethod
    def evaluate(self, points: Any, batches: Any, count: Any) -> Evaluated:
        """Returns the losses and gradients at points.

        Args:
            points: a pytree like the parameters, leaves [N, *shape].
            batches: a pytree with leaves [N, ...], a batch for each point; None: the loss needs none.
            count: how many of the points matter, from the first on: others needn't be evaluated.
        """


def gradient_of_point(loss: Callable[[Any, Any], Any], replicas: int) -> Callable[[Any, Any], Any]:
    """Returns a function of a point and its batch to the loss, the gradient, and the gradient's variance by leaf.

    Args:
        loss: the mean loss of parameters on a batch.
        replicas: into how many parts a batch is cut, of which the variance is estimated; 1: it isn't.
    """
    checks.count("evaluator", "replicas", replicas)
    if replicas == 1:
        return lambda point, batch: (*jax.value_and_grad(loss)(point, batch), None)

    def of_parts(point: Any, batch: Any) -> Any:
        losses, of_replicas = jax.vmap(jax.value_and_grad(loss), (None, 0))(point, parts_of(batch, replicas))
        mean = jax.tree_util.tree_map(lambda g: jnp.mean(g, axis=0), of_replicas)
        noise = jax.tree_util.tree_map(
            lambda g, m: jnp.sum((g - m).astype(jnp.float32) ** 2) / (replicas * (replicas - 1)), of_replicas, mean
        )
        return jnp.mean(losses), mean, noise

    return of_parts


@dataclasses.dataclass(frozen=True, eq=False)
class _OfLoss(Evaluator):
    """An evaluator of a loss.

    Attributes:
        loss: the mean loss of parameters on a batch.
        replicas: into how many parts each batch is cut to estimate the gradient's noise; 1: it isn't.
    """

    loss: Callable[[Any, Any], Any]
    replicas: int = 1


@final
class Vmapped(_OfLoss):
    """All points side by side in one program, by `vmap`; loss and replicas are those of `OneByOne`."""

    def evaluate(self, points: Any, batches: Any, count: Any) -> Evaluated:
        del count
        return Evaluated(*self._program(points, batches))

    @functools.cached_property
    def _program(self) -> Callable[[Any, Any], Any]:
        return jax.jit(jax.vmap(gradient_of_point(self.loss, self.replicas)))


@final
class OneByOne(_OfLoss):
    """One point after another: no faster than steps, with the memory of one; on CPUs often faster than `Vmapped`."""

    def evaluate(self, points: Any, batches: Any, count: Any) -> Evaluated:
        """Returns the gradients of the points that matter; those of others are zeros, their losses NaN."""
        return Evaluated(*self._program(points, batches, count))

    @functools.cached_property
    def _program(self) -> Callable[[Any, Any, Any], Any]:
        gradient = gradient_of_point(self.loss, self.replicas)

        def one(carry: None, row: Any) -> Any:
            place, count, point, batch = row
            shapes = jax.eval_shape(gradient, point, batch)

            def nothing() -> Any:
                loss, *others = jax.tree_util.tree_map(lambda s: jax.numpy.zeros(s.shape, s.dtype), shapes)
                return (loss * np.nan, *others)

            return carry, jax.lax.cond(place < count, lambda: gradient(point, batch), nothing)

        def every(points: Any, batches: Any, count: Any) -> Any:
            n = jax.tree_util.tree_leaves(points)[0].shape[0]
            places = jax.numpy.arange(n)
            return jax.lax.scan(one, None, (places, jax.numpy.broadcast_to(count, n), points, batches))[1]

        return jax.jit(every)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Sharded(Evaluator):
    """Points over several devices of this process, as many on each.

    What comes back is where the points were, so that the step goes on there. It isn't for use inside of `jit`.

    Attributes:
        loss: the mean loss of parameters on a batch.
        devices: the devices; None: all of them.
        replicas: into how many parts each batch is cut to estimate the gradient's noise; 1: it isn't.
    """

    loss: Callable[[Any, Any], Any]
    devices: Sequence[Any] | None = None
    replicas: int = 1

    def evaluate(self, points: Any, batches: Any, count: Any) -> Evaluated:
        """Returns the gradients of all points.

        Raises:
            ValueError: the number of points doesn't divide by that of devices.
        """
        del count
        sharding, program = self._program
        first = jax.tree_util.tree_leaves(points)[0]
        n, places = first.shape[0], sharding.mesh.size
        if n % places:
            raise ValueError(f"parallel is {n}, but must divide by the {places} devices; give fewer devices, "
                             "or another number of points")  # fmt: skip
        losses, gradients, noise = program(*jax.device_put((points, batches), sharding))
        gradients = jax.tree_util.tree_map(lambda g, p: jax.device_put(g, p.sharding), gradients, points)
        # Small ones go where a program of the points takes them.
        losses, noise = jax.tree_util.tree_map(np.asarray, (losses, noise))
        return Evaluated(losses, gradients, noise)

    @functools.cached_property
    def _program(self) -> tuple[NamedSharding, Callable[[Any, Any], Any]]:
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
        self, loss: Callable[[Any, Any], Any], workers: int, options: Mapping[str, Any] | None = None,
        replicas: int = 1, patience_s: float | None = None,
    ) -> None:  # fmt: skip
        """Starts the workers.

        Args:
            loss: the mean loss of parameters on a batch, which Ray sends to each worker.
            workers: how many there are.
            options: Ray's options of each worker, as `num_gpus`; a CPU each by default.
            replicas: into how many parts each batch is cut to estimate the gradient's noise; 1: it isn't.
            patience_s: points that haven't arrived after so long are left out; None: they are waited for.

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

    def evaluate(self, points: Any, batches: Any, count: Any) -> Evaluated:
        """Returns the gradients of the points that matter; those that haven't arrived are zeros."""
        points, batches = jax.device_get((points, batches))
        n = jax.tree_util.tree_leaves(points)[0].shape[0]
        running = {}
        for place in range(int(count)):
            point, batch = (jax.tree_util.tree_map(lambda x, i=place: x[i], tree) for tree in (points, batches))
            actor = place % len(self._actors)
            running[self._actors[actor].gradient.remote(point, batch)] = place, actor
        answers: dict[int, Any] = {}
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

    def _evaluated(self, answers: Mapping[int, Any], points: Any, n: int) -> Evaluated:
        losses = np.full(n, np.nan, np.float32)
        gradients = jax.tree_util.tree_map(np.zeros_like, points)
        noise = None
        if self._replicas > 1:
            noise = jax.tree_util.tree_map(lambda p: np.zeros(n, np.float32), points)
        for place, (loss, gradient, own) in answers.items():
            losses[place] = loss
            for kept, new in ((gradients, gradient), (noise, own)):
                for leaf, computed in zip(*map(jax.tree_util.tree_leaves, (kept, new)), strict=True):
                    leaf[place] = computed
        return Evaluated(losses, gradients, noise, np.isin(np.arange(n), list(answers)))


@final
class _GradientWorker:
    """A worker in a Ray actor, which computes gradients."""

    def __init__(self, loss: Callable[[Any, Any], Any], replicas: int) -> None:
        self._program = jax.jit(gradient_of_point(loss, replicas))

    def gradient(self, point: Any, batch: Any) -> Any:
        """Returns the loss, the gradient and its noise, as numpy arrays."""
        return jax.device_get(self._program(point, batch))
