"""The layers of one model on any mesh, each mesh solved when it is first asked for."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu.layers import LayeredStep, TracedStep, cut_into_layers, with_attention
from alpa_dejavu.layers.features import describe
from alpa_dejavu.problem import Model
from alpa_dejavu.sharding._layer_jaxprs import LayerJaxprs
from alpa_dejavu.sharding._layer_program import LayerProgram
from alpa_dejavu.sharding._mesh import LogicalMesh
from alpa_dejavu.sharding._options import ShardingOptions
from alpa_dejavu.sharding._spec import Shape
from alpa_dejavu.sharding.boundary_solve import Workshops
from alpa_dejavu.sharding.layer_sharding import StageLayers
from alpa_dejavu.sharding.layers import LayoutsOfStages, kinds_of, layers_of, lengthened, solvers_on
from alpa_dejavu.sharding.sharded import ZERO, ModelSharding

_ALPHA, _BETA = (1.0, 1.0), (1.0, 0.1)
"""The alpha and beta that Alpa's pass assumes for the axes of every logical mesh: the second is ten times as fast."""


@final
class SolvedLayers:
    """Solves the auto-sharding of a model's layers for a logical mesh when it is first asked for, and keeps the answer.

    A mesh of long axes is solved by the shortest ones that divide the same sizes: what all costs grows there in about
    the same proportion, so that layers are best cut in the same way, as long as they can be.

    Args:
        layers: the jaxprs of each of the model's layers.
        workshops: a cache of the solver's cost tables by mesh, which other cuts of the same train step into layers may
            have filled; the tables of these layers are added to it.
    """

    def __init__(self, layers: Sequence[LayerJaxprs], workshops: Workshops | None = None) -> None:
        self._layers = layers
        self._workshops = workshops
        self._by_mesh: dict[tuple[int, int, bool], list[StageLayers]] = {}
        self._layouts: dict[tuple[Shape, ShardingOptions], LayoutsOfStages] = {}

    def __call__(self, data_parallel: int, tensor_parallel: int, batch_forced: bool) -> list[StageLayers]:
        """Returns the shardings of all layers on a mesh at each ZeRO level (0, 2, 3), equal without data parallelism.

        `data_parallel` and `tensor_parallel` are the lengths of mesh axes 0 and 1; `batch_forced` says whether axis 0
        must cut the batch dimension.
        """
        key = data_parallel, tensor_parallel, batch_forced
        if key not in self._by_mesh:
            mesh = LogicalMesh((data_parallel, tensor_parallel), _ALPHA, _BETA)
            options = ShardingOptions(force_batch_dim_to_mesh_dim=0 if batch_forced else -1)
            with collector_paused():
                self._by_mesh[key] = self._solved(mesh, options)
        return self._by_mesh[key]

    @cached_property
    def _kinds(self) -> tuple[list[int], list[LayerProgram]]:
        return kinds_of(self._layers)

    def _solved(self, mesh: LogicalMesh, options: ShardingOptions) -> list[StageLayers]:
        kinds, programs = self._kinds
        for shape in self._shorter(mesh.shape):
            shorter = LogicalMesh(shape, mesh.alpha, mesh.beta)
            solvers = solvers_on(programs, shorter, options, self._workshops)
            if (shape, options) not in self._layouts:
                self._layouts[shape, options] = LayoutsOfStages.cheapest([solvers[kind] for kind in kinds])
            layouts = self._layouts[shape, options]
            if layouts.hold_on(mesh.shape):
                break
        if shape != mesh.shape:
            solvers = lengthened(solvers, mesh)
        chain = [solvers[kind] for kind in kinds]
        return layouts.layers(chain, ZERO) if mesh.shape[0] > 1 else layouts.layers(chain, ZERO[:1]) * len(ZERO)

    def _shorter(self, shape: Shape) -> Iterator[Shape]:
        """Yields the lengths of a mesh's axes, and before them shorter ones, the shortest first, that divide them, and
        the same sizes of the layers' tensors: what is best there is best on the mesh, too, if it can be cut so.
        """
        lengths = []
        for length in shape:
            divided = self._sizes % length == 0
            divisors = (n for n in range(min(length, 2), length + 1) if length % n == 0)
            lengths.append([n for n in divisors if (divided == (self._sizes % n == 0)).all()])
        return itertools.product(*lengths)

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        """The different sizes of dimensions of the layers' tensors."""
        return np.unique(
            [size for program in self._kinds[1] for operator in program.operators for size in operator.shape]
        )


def model_of_step(traced: TracedStep, num_layers: int | str, *, remat: str = "none", attention: str = "plain") -> Model:
    """Cuts a traced train step into layers, and returns a `Model` of their operators, tensors and shardings.

    The auto-sharding engine solves how a logical mesh divides the layers when that mesh is first asked for.

    Args:
        traced: the train step.
        num_layers: how many layers there are to be; "auto": as many as Alpa's `AutoLayerOption` would choose.
        remat: "layer" if a layer's backward pass computes its forward pass again; "none" if not.
        attention: "fused" if attention that is written out runs as fused kernels; "plain" if as XLA compiles it.

    Raises:
        ValueError: the loss has too few equations for so many layers, or an option isn't known.
    """
    layered = with_attention(cut_into_layers(traced, num_layers, remat=remat), attention)
    model = describe(
        layered.forward, layered.backward, layered.updates, layered.accumulators, traced.micro_batch, layered.data
    )
    return dataclasses.replace(model, sharding=ModelSharding(_solver(layered, traced)))


def solver_of_step(traced: TracedStep, num_layers: int, *, attention: str = "plain") -> SolvedLayers:
    """Cuts a traced train step into layers, and returns the solver of their auto-sharding on any logical mesh.

    `attention` is as for `model_of_step`.
    """
    return _solver(with_attention(cut_into_layers(traced, num_layers), attention), traced)


def _solver(layered: LayeredStep, traced: TracedStep) -> SolvedLayers:
    layers = layered.forward, layered.backward, layered.updates, layered.accumulators
    return SolvedLayers(layers_of(*layers, layered.data, traced.micro_batch, layered.gradients), traced.workshops)
