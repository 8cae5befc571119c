"""Gradients in this process: side by side or one after another on a device, or over several devices."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_dejavu.problem import checks
from alpa_dejavu.training._scope import parts_of


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
        losses, each = jax.vmap(jax.value_and_grad(loss), (None, 0))(point, parts_of(batch, replicas))
        mean = jax.tree_util.tree_map(lambda g: jnp.mean(g, axis=0), each)
        noise = jax.tree_util.tree_map(
            lambda g, m: jnp.sum((g - m).astype(jnp.float32) ** 2) / (replicas * (replicas - 1)), each, mean
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

        def one(carry: None, given: Any) -> Any:
            place, count, point, batch = given
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
