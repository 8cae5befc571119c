"""Gradients in this process: side by side or one after another on a device, or over several devices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_dejavu.training.optex.evaluators._base import Evaluated, Evaluator, gradient_of_point

__all__ = ["OneByOne", "Sharded", "Vmapped"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Vmapped(Evaluator):
    """All points side by side in one program, by `vmap`.

    Attributes:
        loss: the mean loss of parameters on a batch.
        replicas: into how many parts each batch is cut to estimate the gradient's noise; 1: it isn't.
    """

    loss: Callable[[Any, Any], Any]
    replicas: int = 1

    def evaluate(self, points: Any, batches: Any, count: Any) -> Evaluated:
        """Returns the gradients of all points."""
        del count
        return Evaluated(*self._program(points, batches))

    @functools.cached_property
    def _program(self) -> Callable[[Any, Any], Any]:
        return jax.jit(jax.vmap(gradient_of_point(self.loss, self.replicas)))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class OneByOne(Evaluator):
    """One point after another: no faster than steps, but with the memory of one; on CPUs often faster than `Vmapped`.

    Attributes:
        loss: the mean loss of parameters on a batch.
        replicas: into how many parts each batch is cut to estimate the gradient's noise; 1: it isn't.
    """

    loss: Callable[[Any, Any], Any]
    replicas: int = 1

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
