"""Gradients by Ray actors, a point on each. A worker that dies is replaced; its point is left out of the step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, final

import jax
import numpy as np

from alpa_dejavu._util.units import seconds
from alpa_dejavu.problem import checks
from alpa_dejavu.training._ray import Actors
from alpa_dejavu.training.optex.evaluators._local import Evaluated, Evaluator, gradient_of_point

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
                for leaf, one in zip(*map(jax.tree_util.tree_leaves, (kept, new)), strict=True):
                    leaf[place] = one
        return Evaluated(losses, gradients, noise, np.isin(np.arange(n), list(answers)))


@final
class _GradientWorker:
    """A worker in a Ray actor, which computes gradients."""

    def __init__(self, loss: Callable[[Any, Any], Any], replicas: int) -> None:
        self._program = jax.jit(gradient_of_point(loss, replicas))

    def gradient(self, point: Any, batch: Any) -> Any:
        """Returns the loss, the gradient and its noise, as numpy arrays."""
        return jax.device_get(self._program(point, batch))
