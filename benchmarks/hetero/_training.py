"""Training by a plan while a host is killed, and the same training on one device, undisturbed."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from _measured_jobs import Job
from alpa_dejavu.alpa.resume import AlpaSession, Trained, train
from alpa_dejavu.problem import Plan

STEPS, EVERY, KILLED_IN = 12, 4, 7
"""So many steps, a checkpoint after so many, and the step in which a host is killed, counted from 0."""
_LATER_S = 0.2
"""After the step's batch was asked for, so that the step is running."""


def disturbed(job: Job, plan: Plan, kill: Callable[[], None]) -> Trained:
    """Trains through Alpa on the cluster that this program is connected to; `kill` kills one of its hosts."""
    step, (_, data) = job.model(job.batch)
    killing: list[threading.Timer] = []

    def batch(number: int) -> Any:
        if number == KILLED_IN and not killing:
            killing.append(threading.Timer(_LATER_S, kill))
            killing[0].start()
        return _batch(data, number)

    with tempfile.TemporaryDirectory() as folder:
        session = AlpaSession(step, lambda: _state(job), batch, folder)
        return train(session, plan, STEPS, every=EVERY)


def undisturbed(job: Job) -> list[float]:
    """The losses of the same steps, each as a whole on one device."""
    step, (_, data) = job.model(job.batch)
    alone, state, losses = jax.jit(step), _state(job), []
    for number in range(STEPS):
        state, loss = alone(state, _batch(data, number))
        losses.append(float(loss))
    return losses


def _state(job: Job) -> Any:
    """Weights by chance that keep activations in size, and momenta of zero."""
    _, ((weights, momenta), _) = job.model(job.batch)
    rng = np.random.default_rng(0)

    def drawn(leaf: Any) -> Any:
        return (rng.normal(size=leaf.shape) * (2 / leaf.shape[0]) ** 0.5).astype(leaf.dtype)

    return jax.tree_util.tree_map(drawn, weights), jax.tree_util.tree_map(lambda m: np.zeros(m.shape, m.dtype), momenta)


def _batch(data: Any, number: int) -> Any:
    rng = np.random.default_rng(number)
    return jax.tree_util.tree_map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), data)
