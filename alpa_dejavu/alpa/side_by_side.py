"""Gradients of several points with Alpa: on a submesh each, or one after another where there is one mesh.

    option = DejavuStageOption()
    method = alpa.PipeshardParallel(num_micro_batches=4, layer_option=alpa.AutoLayerOption(2), stage_option=option)
    evaluator = AlpaGradients(loss, [method])
    params, state, report = side_by_side.step(params, state, evaluator, batches)

It is an evaluator for `alpa_dejavu.training.optex`, which knows nothing of Alpa.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import alpa
import jax
import numpy as np
from alpa.device_mesh import VirtualPhysicalMesh, get_global_virtual_physical_mesh

from alpa_dejavu.training.optex.evaluators import Evaluated, Evaluator


@final
class AlpaGradients(Evaluator):
    """Gradients by steps that Alpa has parallelized, one for each parallel method; point i goes to method i modulo
    that.

    All of a round are dispatched before one is waited for. Gradients come back as numpy's arrays. It isn't for use
    inside of `jit`.
    """

    def __init__(self, loss: Callable[[Any, Any], Any], methods: Sequence[alpa.ParallelMethod]) -> None:
        """Parallelizes the gradient of a mean loss of parameters on a batch by each of Alpa's methods, with devices of
        its own, or by one; compiled in the first step. Raises ValueError without a method.
        """
        if not methods:
            raise ValueError("methods is empty, but must have a parallel method at least; give one of Alpa's")

        def gradient(params: Any, batch: Any) -> Any:
            return alpa.value_and_grad(loss)(params, batch)

        self.steps = [alpa.parallelize(gradient, method=method, donate_argnums=(), batch_argnums=(1,))
                      for method in methods]  # fmt: skip

    def evaluate(self, points: Any, batches: Any, count: Any) -> Evaluated:
        """Returns the gradients of the points that matter; those of others are zeros, their losses NaN."""
        points, batches = jax.device_get((points, batches))
        n = jax.tree_util.tree_leaves(points)[0].shape[0]
        losses, gradients = np.full(n, np.nan, np.float32), jax.tree_util.tree_map(np.zeros_like, points)
        rows = jax.tree_util.tree_leaves(gradients)
        for first in range(0, int(count), len(self.steps)):
            places = range(first, min(first + len(self.steps), int(count)))
            results = [self.steps[place - first](*_row((points, batches), place)) for place in places]
            for place, (loss, gradient) in zip(places, results, strict=True):
                losses[place] = np.asarray(loss)
                for row, leaf in zip(rows, jax.tree_util.tree_leaves(gradient), strict=True):
                    row[place] = np.asarray(leaf)
        return Evaluated(losses, gradients)


def submeshes(count: int) -> list[VirtualPhysicalMesh]:
    """Returns so many equal parts, of whole hosts as Alpa 0.2.3 slices them, of Alpa's cluster, for the `devices` of
    pipelines. Raises RuntimeError if Alpa isn't connected, and ValueError if hosts can't be divided so.
    """
    mesh = get_global_virtual_physical_mesh()
    if mesh is None:
        raise RuntimeError('Alpa isn\'t connected to Ray; call alpa.init("ray") first')
    if count < 1 or mesh.num_hosts % count:
        raise ValueError(f"count is {count}, but must divide the {mesh.num_hosts} hosts; take another number of "
                         "submeshes, or one mesh")  # fmt: skip
    size = mesh.num_hosts // count
    groups = [list(range(first, first + size)) for first in range(0, mesh.num_hosts, size)]
    return [mesh.slice_2d(hosts, [mesh.devices[host] for host in hosts]) for hosts in groups]


def _row(tree: Any, place: int) -> Any:
    return jax.tree_util.tree_map(lambda x: x[place], tree)
