"""The layers of one model on any mesh, each mesh solved when it is first asked for."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import final

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

    A mesh is solved by the shortest axes that divide its own, and whose best cuts are even by its own, too: what
    everything costs grows in about the same proportion as axes do, and longer ones can't cut what shorter ones can't.

    Args:
        layers: the jaxprs of each of the model's layers.
        workshops: a cache of the solver's cost tables by mesh, which other cuts of the same train step into layers may
            have filled; the tables of these layers are added to it.
        sequence_parallel: whether partial sums of activations may be reduce-scattered, as `ShardingOptions` has it. Two
            tensor-parallel devices never do so: NCCL's all-reduce of two takes up to 22 % less time than its halves,
            which is more than is saved between products, as measured on A100s and H100s.
    """

    def __init__(
        self, layers: Sequence[LayerJaxprs], workshops: Workshops | None = None, sequence_parallel: bool = False
    ) -> None:
        self._layers, self._sequence_parallel = layers, sequence_parallel
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
            forced, scatters = 0 if batch_forced else -1, self._sequence_parallel and tensor_parallel != 2
            options = ShardingOptions(force_batch_dim_to_mesh_dim=forced, sequence_parallel=scatters)
            with collector_paused():
                self._by_mesh[key] = self._solved(mesh, options)
        return self._by_mesh[key]

    @cached_property
    def _kinds(self) -> tuple[list[int], list[LayerProgram]]:
        return kinds_of(self._layers)

    def _solved(self, mesh: LogicalMesh, options: ShardingOptions) -> list[StageLayers]:
        layouts = self._layouts_on(mesh, options)
        solvers = layouts.solvers if layouts.mesh == mesh else lengthened(layouts.solvers, mesh)
        return layouts.layers(solvers, ZERO) if mesh.shape[0] > 1 else layouts.layers(solvers, ZERO[:1]) * len(ZERO)

    def _layouts_on(self, mesh: LogicalMesh, options: ShardingOptions) -> LayoutsOfStages:
        """Solves a mesh, if none of shorter axes has a solution that holds on it."""
        key = mesh.shape, options
        if key not in self._layouts:
            *shorter, _ = (LogicalMesh(shape, mesh.alpha, mesh.beta) for shape in _shapes(mesh.shape))
            solutions = (self._layouts_on(other, options) for other in shorter)
            holding = next((layouts for layouts in solutions if layouts.hold_on(mesh.shape)), None)
            if holding is None:
                kinds, programs = self._kinds
                solvers = solvers_on(programs, mesh, options, self._workshops)
                holding = LayoutsOfStages.cheapest([solvers[kind] for kind in kinds])
            self._layouts[key] = holding
        return self._layouts[key]


def _shapes(shape: Shape) -> Iterable[Shape]:
    """The lengths of a mesh's axes after shorter ones that divide them, the shortest first."""
    return itertools.product(*map(_growing, shape))


def _growing(length: int) -> list[int]:
    """The lengths of an axis, ascending, by each of which the next one can be divided.

    >>> [_growing(length) for length in (1, 8, 12, 7)]
    [[1], [2, 4, 8], [2, 4, 12], [7]]
    """
    lengths, factor = [1], 2
    while lengths[-1] < length:
        while length // lengths[-1] % factor:
            factor += 1
        lengths.append(lengths[-1] * factor)
    return lengths[1:] or lengths


def model_of_step(
    traced: TracedStep,
    num_layers: int | str,
    *,
    remat: str = "none",
    attention: str = "plain",
    sequence_parallel: bool = False,
) -> Model:
    """Cuts a traced train step into layers, and returns a `Model` of their operators, tensors and shardings.

    The auto-sharding engine solves how a logical mesh divides the layers when that mesh is first asked for.

    Args:
        traced: the train step.
        num_layers: how many layers there are to be; "auto": as many as Alpa's `AutoLayerOption` would choose.
        remat: "layer" if a layer's backward pass computes its forward pass again; "none" if not.
        attention: "fused" if attention that is written out runs as fused kernels; "plain" if as XLA compiles it.
        sequence_parallel: whether partial sums may be reduce-scattered, as `ShardingOptions` has it.

    Raises:
        ValueError: the loss has too few equations for so many layers, or an option isn't known.
    """
    layered = with_attention(cut_into_layers(traced, num_layers, remat=remat), attention)
    model = describe(
        layered.forward, layered.backward, layered.updates, layered.accumulators, traced.micro_batch, layered.data
    )
    return dataclasses.replace(model, sharding=ModelSharding(_solver(layered, traced, sequence_parallel)))


def solver_of_step(
    traced: TracedStep, num_layers: int, *, attention: str = "plain", sequence_parallel: bool = False
) -> SolvedLayers:
    """Cuts a traced train step into layers, and returns the solver of their auto-sharding on any logical mesh.

    `attention` and `sequence_parallel` are as for `model_of_step`.
    """
    return _solver(with_attention(cut_into_layers(traced, num_layers), attention), traced, sequence_parallel)


def _solver(layered: LayeredStep, traced: TracedStep, sequence_parallel: bool) -> SolvedLayers:
    layers = layered.forward, layered.backward, layered.updates, layered.accumulators
    of_layers = layers_of(*layers, layered.data, traced.micro_batch, layered.gradients)
    return SolvedLayers(of_layers, traced.workshops, sequence_parallel)
