"""How a model's layers are cut on some meshes, as what JSON has; alike layers share what they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np

from alpa_dejavu.kept._arrays import packed, unpacked
from alpa_dejavu.kept._model import Data, Numbered
from alpa_dejavu.problem import MeshConfig
from alpa_dejavu.sharded import ModelSharding, solved_for
from alpa_dejavu.sharding._layer_sharding import Collective, LayerSharding
from alpa_dejavu.sharding._sharding_table import StageLayers

_ALONE = (1, 1, True)
_COLLECTIVE = tuple(field.name for field in dataclasses.fields(Collective))
_CUTS = ("forward_cuts", "backward_cuts", "update_cuts")
_PARTS = ("memory_parts", "temporary_moments")


@final
class KeptLayers:
    """Shardings by the lengths of a mesh's axes, as `alpa_dejavu.sharded.Solved`."""

    def __init__(self, known: Mapping[tuple[int, int, bool], Sequence[StageLayers]]) -> None:
        self._known = dict(known)

    def knows(self, config: MeshConfig) -> bool:
        """Whether a mesh was asked for when the plan was made."""
        return solved_for(config) in self._known

    def __call__(self, data_parallel: int, tensor_parallel: int, batch_forced: bool) -> Sequence[StageLayers]:
        """The layers at each ZeRO level."""
        return self._known[data_parallel, tensor_parallel, batch_forced]


def sharding_data(sharding: ModelSharding, configs: Iterable[MeshConfig]) -> Data:
    """What was solved for some configs, without the layouts at boundaries: they are settled."""
    layers, rows = Numbered(), Numbered()
    meshes = []
    for mesh in dict.fromkeys([_ALONE, *map(solved_for, configs)]):
        levels = [rows.number(level) for level in sharding.solved(*mesh)]
        meshes.append({"mesh": list(mesh), "levels": levels})
    stages = [
        {
            "variants": [layers.number(one) for one in row.variants],
            "numbers": list(row.numbers),
            "of_stages": None if row.of_stages is None else packed(row.of_stages, np.int16),
        }
        for row in rows.found
    ]
    each = [_layer_data(one) for one in layers.found]
    return {"batch_ratio": sharding.batch_ratio, "meshes": meshes, "stages": stages, "layers": each}


def sharding_of(data: Mapping[str, Any]) -> ModelSharding:
    """What `sharding_data` has made such data of."""
    layers = [_layer(each) for each in data["layers"]]
    rows = [
        StageLayers(
            tuple(layers[n] for n in row["variants"]),
            tuple(row["numbers"]),
            None if row["of_stages"] is None else unpacked(row["of_stages"], np.int16).astype(np.intp),
        )
        for row in data["stages"]
    ]
    known = {}
    for mesh in data["meshes"]:
        across, along, forced = mesh["mesh"]
        known[int(across), int(along), bool(forced)] = [rows[n] for n in mesh["levels"]]
    return ModelSharding(KeptLayers(known), float(data["batch_ratio"]))


def _layer_data(one: LayerSharding) -> Data:
    return {
        "mesh_shape": list(one.mesh_shape),
        "collectives": [[getattr(each, name) for name in _COLLECTIVE] for each in one.collectives],
        "cost": float(one.cost),
        **{name: packed(getattr(one, name), np.int8) for name in _CUTS},
        **{name: getattr(one, name).tolist() for name in _PARTS},
    }


def _layer(data: Mapping[str, Any]) -> LayerSharding:
    shape = tuple(map(int, data["mesh_shape"]))
    arrays: dict[str, Any] = {name: unpacked(data[name], np.int8).astype(np.bool_) for name in _CUTS}
    arrays |= {name: np.array(data[name], dtype=np.float64).reshape(-1, 2, 2) for name in _PARTS}
    return LayerSharding(
        mesh_shape=shape,
        collectives=tuple(Collective(*each) for each in data["collectives"]),
        cost=float(data["cost"]),
        **arrays,
    )
