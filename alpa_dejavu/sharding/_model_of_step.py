"""The model that is planned for, made from a traced step."""

from __future__ import annotations

import dataclasses

from alpa_dejavu.layers import LayeredStep, TracedStep, cut_into_layers
from alpa_dejavu.layers.features import describe
from alpa_dejavu.problem import Model
from alpa_dejavu.sharding.layers import layers_of
from alpa_dejavu.sharding.sharded import ModelSharding
from alpa_dejavu.sharding.solved import SolvedLayers


def model_of_step(traced: TracedStep, num_layers: int | str, *, remat: str = "none") -> Model:
    """Cuts a traced step into layers, and returns the model that they make up; see `cut_into_layers`.

    How logical meshes divide them is solved by the sharding engine, on each mesh when it is first asked for.

    Raises:
        ValueError: the loss has too few equations for so many layers, or an option isn't known.
    """
    layered = cut_into_layers(traced, num_layers, remat=remat)
    model = describe(
        layered.forward, layered.backward, layered.updates, layered.accumulators, traced.micro_batch, layered.data
    )
    return dataclasses.replace(model, sharding=ModelSharding(_solver(layered, traced)))


def solver_of_step(traced: TracedStep, num_layers: int) -> SolvedLayers:
    """Returns the solver by which `model_of_step` has a model sharded, without the model."""
    return _solver(cut_into_layers(traced, num_layers), traced)


def _solver(layered: LayeredStep, traced: TracedStep) -> SolvedLayers:
    layers = layered.forward, layered.backward, layered.updates, layered.accumulators
    return SolvedLayers(layers_of(*layers, layered.data, traced.micro_batch, layered.gradients), traced.workshops)
