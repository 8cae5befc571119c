"""Writes a model with its shardings as JSON's data, and makes it of these again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from alpa_dejavu.planning.search.models._model import Data, model_data, model_of
from alpa_dejavu.planning.search.models._sharding import KeptLayers, sharding_data, sharding_of
from alpa_dejavu.problem import Model
from alpa_dejavu.sharding.sharded import ModelSharding, Solved


def remembering(model: Model) -> Model:
    """Returns a model whose sharding remembers for which logical meshes it was asked, so that these can be saved."""
    sharding = model.sharding
    if not isinstance(sharding, ModelSharding) or isinstance(sharding.solved, KeptLayers):
        return model
    solved = KeptLayers({}, sharding.solved)
    return dataclasses.replace(model, sharding=dataclasses.replace(sharding, solved=solved))


def meshes_of(model: Model) -> int:
    """Returns for how many logical meshes a model's sharding was asked so far; 0 if it doesn't remember."""
    solved = model.sharding.solved if isinstance(model.sharding, ModelSharding) else None
    return len(solved.meshes) if isinstance(solved, KeptLayers) else 0


def entry_of(model: Model) -> Data:
    """Returns a model as JSON data: its layers and tensors, and its shardings on the logical meshes asked for.

    Raises:
        ValueError: a number in it doesn't fit the format.
    """
    sharding = model.sharding
    if not isinstance(sharding, ModelSharding):
        return {"model": model_data(model), "sharding": None}
    asked = sharding.solved.meshes if isinstance(sharding.solved, KeptLayers) else ()
    return {"model": model_data(model), "sharding": sharding_data(sharding, asked)}


def model_of_entry(data: Mapping[str, Any], num_layers: int, solve: Solved) -> Model:
    """Returns the model, with its shardings, that JSON data made by `entry_of` describe.

    Args:
        data: the JSON data.
        num_layers: how many layers the model is to have.
        solve: a function that shards the layers on a logical mesh that isn't in the data.

    Raises:
        ValueError: the data are of another number of layers, or broken.
    """
    model = model_of(data["model"])
    if model.num_layers != num_layers:
        raise ValueError(f"it has {model.num_layers} layers, but must have {num_layers}")
    kept = data["sharding"]
    if kept is None:
        return model
    return dataclasses.replace(model, sharding=sharding_of(kept, model, solve))
