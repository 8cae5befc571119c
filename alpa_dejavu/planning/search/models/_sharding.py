"""Writes a model, and how its layers are cut on some meshes, as JSON's data, in which alike layers are written once."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import new_variants, with_new_variants
from alpa_dejavu.planning.search.models._model import (
    Data,
    Numbered,
    check_figures,
    model_data,
    model_of,
    packed,
    unpacked,
)
from alpa_dejavu.problem import Layer, MeshConfig, Model, NoShardingError
from alpa_dejavu.problem.checks import not_negative, one_of
from alpa_dejavu.sharding.layer_sharding import (
    COLLECTIVE_KINDS,
    COLLECTIVE_PHASES,
    MEMORY,
    Collective,
    LayerFlow,
    LayerFlows,
    LayerSharding,
    StageLayers,
)
from alpa_dejavu.sharding.sharded import ZERO, ModelSharding, Solved, solved_for

Mesh: TypeAlias = tuple[int, int, bool]
"""The lengths of a logical mesh's axes, and whether the batch is forced onto the first."""
_ALONE = (1, 1, True)
_COLLECTIVE = tuple(field.name for field in dataclasses.fields(Collective))
_CUTS = ("forward_cuts", "backward_cuts", "update_cuts")
_PARTS = ("memory_parts", "temporary_moments")
_PASSES = ("forward", "backward")
_NEW = "new", "variants"
"""The parts of `new_variants`, by which stages' variants are written."""


@final
class KeptLayers:
    """A memory of how a model's layers are sharded on each logical mesh, which has a new mesh solved when it is first
    asked for.

    Args:
        kept: by mesh, the sharded layers at each ZeRO level.
        solve: a function that shards the layers on another mesh; None: no other mesh can be had.
    """

    def __init__(self, kept: Mapping[Mesh, Sequence[StageLayers]], solve: Solved | None = None) -> None:
        self._kept = dict(kept)
        self._solve = solve

    @property
    def meshes(self) -> Collection[Mesh]:
        """Returns the logical meshes whose shardings are known by now, in the order in which they were asked for."""
        return self._kept.keys()

    def knows(self, config: MeshConfig) -> bool:
        """Returns whether shardings can be had for a config's logical mesh: they are known, or can be solved."""
        return self._solve is not None or solved_for(config) in self._kept

    def __call__(self, data_parallel: int, tensor_parallel: int, batch_forced: bool) -> Sequence[StageLayers]:
        """Returns the layers on a mesh at each ZeRO level; raises KeyError if they can't be had."""
        mesh = data_parallel, tensor_parallel, batch_forced
        if mesh not in self._kept and self._solve is not None:
            self._kept[mesh] = self._solve(*mesh)
        return self._kept[mesh]


def remembering(model: Model) -> Model:
    """Returns a model whose sharding remembers for which logical meshes it was asked, so that these can be saved."""
    sharding = model.sharding
    if not isinstance(sharding, ModelSharding) or isinstance(sharding.solved, KeptLayers):
        return model
    solved = KeptLayers({}, sharding.solved)
    return dataclasses.replace(model, sharding=dataclasses.replace(sharding, solved=solved))


def meshes_of(model: Model) -> Collection[Mesh]:
    """Returns for which logical meshes a model's sharding was asked so far; none if it doesn't remember."""
    solved = model.sharding.solved if isinstance(model.sharding, ModelSharding) else None
    return solved.meshes if isinstance(solved, KeptLayers) else ()


def entry_of(model: Model) -> Data:
    """Returns a model as JSON data: its layers and tensors, and its shardings on the logical meshes asked for.

    Raises:
        ValueError: a number in it doesn't fit the format.
    """
    sharding = model.sharding
    data = sharding_data(sharding, meshes_of(model)) if isinstance(sharding, ModelSharding) else None
    return {"model": model_data(model), "sharding": data}


def model_of_entry(data: Mapping[str, Any], num_layers: int, solve: Solved) -> Model:
    """Returns the model of so many layers, with its shardings, that `entry_of` made JSON data of; other meshes are
    solved.

    Raises:
        ValueError: the data are of another number of layers, or broken.
    """
    model, sharding = model_of(data["model"]), data["sharding"]
    if model.num_layers != num_layers:
        raise ValueError(f"it has {model.num_layers} layers, but must have {num_layers}")
    return model if sharding is None else dataclasses.replace(model, sharding=sharding_of(sharding, model, solve))


def sharding_data(sharding: ModelSharding, asked: Iterable[Mesh]) -> Data:
    """Returns as JSON data how a model's layers are sharded on some logical meshes, and on a single device.

    Layouts that weren't chosen at stage boundaries are left out. So are meshes on which the model can't be sharded.
    """
    layers, rows = Numbered(), Numbered()
    meshes = []
    for mesh in dict.fromkeys([_ALONE, *asked]):
        try:
            levels = [rows.number(level) for level in sharding.solved(*mesh)]
        except NoShardingError:  # nothing is offered on it
            continue
        meshes.append({"mesh": list(mesh), "levels": levels})
    stages = [
        {
            "variants": [layers.number(variant) for variant in row.variants],
            "numbers": list(row.numbers),
            "of_stages": None
            if row.of_stages is None
            else {name: packed(part, np.int32) for name, part in zip(_NEW, new_variants(row.of_stages), strict=True)},
        }
        for row in rows.objects
    ]
    collectives: dict[Collective, int] = {}
    cuts: dict[bytes, tuple[int, Data]] = {}
    data = {"batch_ratio": sharding.batch_ratio, "meshes": meshes, "stages": stages}
    data["layers"] = [_layer_data(layer, collectives, cuts) for layer in layers.objects]
    data["collectives"] = [[getattr(sent, name) for name in _COLLECTIVE] for sent in collectives]
    return data | {"cuts": [cut for _, cut in cuts.values()]} | _flows_data(layers.objects)


def sharding_of(data: Mapping[str, Any], model: Model, solve: Solved | None = None) -> ModelSharding:
    """Returns the sharding of a model that `sharding_data` made JSON data of; `solve` shards the layers on any other
    mesh (None: no other mesh can be had).

    Raises:
        ValueError: the data are of another model's layers or of other ZeRO levels, or a single device isn't in them.
    """
    collectives = list(map(_collective, data.get("collectives", ())))  # older files have them in each layer, like cuts
    cuts = [unpacked(cut, np.int8).astype(np.bool_) for cut in data.get("cuts", ())]
    layers = [_layer(*pair, collectives, cuts) for pair in zip(data["layers"], _flows_of(data), strict=True)]
    in_stages: dict[str, NDArray[np.int32]] = {}  # of all ZeRO levels alike, and large
    rows = [_stage_layers(row, layers, model, in_stages) for row in data["stages"]]
    if not (0 < (ratio := float(data["batch_ratio"])) < math.inf):
        raise ValueError(f"batch_ratio is {ratio}, but must be a finite number above 0")
    kept = {}
    for mesh in data["meshes"]:
        across, along, forced = mesh["mesh"]
        if len(mesh["levels"]) != len(ZERO):
            raise ValueError(f"the mesh {mesh['mesh']} has {len(mesh['levels'])} ZeRO levels, not {len(ZERO)}")
        levels = kept[int(across), int(along), bool(forced)] = [rows[n] for n in mesh["levels"]]
        if any(variant.mesh_shape != (across, along) for row in levels for variant in row.variants):
            raise ValueError(f"the mesh {mesh['mesh']} has layers that are sharded on another one")
    if _ALONE not in kept:
        raise ValueError("one device alone isn't among the meshes")
    return ModelSharding(KeptLayers(kept, solve), ratio)


def _stage_layers(
    data: Mapping[str, Any], layers: Sequence[LayerSharding], model: Model, in_stages: dict[str, NDArray[np.int32]]
) -> StageLayers:
    num_layers = model.num_layers
    variants = tuple(layers[n] for n in data["variants"])
    numbers = tuple(map(operator.index, data["numbers"]))
    if numbers[:num_layers] != tuple(range(num_layers)) or not 0 <= min(numbers) <= max(numbers) < num_layers:
        raise ValueError(f"its variants are of the layers {numbers}, but the model has {num_layers}")
    if len(variants) != len(numbers):
        raise ValueError(f"there are {len(variants)} variants, but numbers for {len(numbers)}")
    pairs = zip(data["variants"], numbers, strict=True)
    for (_, number), variant in dict(zip(pairs, variants, strict=True)).items():
        _check_of_layer(variant, model.layers[number])
    if data["of_stages"] is None:
        return StageLayers(variants, numbers)
    written = data["of_stages"]
    if (key := str(written)) not in in_stages:
        if _NEW[0] in written:
            in_stages[key] = with_new_variants(*(unpacked(written[name], np.int32) for name in _NEW)).astype(np.int32)
        else:  # older files have all variants
            in_stages[key] = unpacked(written, np.int16).astype(np.int32)
    of_stages = in_stages[key]
    if of_stages.shape != (num_layers,) * 3 or not -1 <= of_stages.min() <= of_stages.max() < len(variants):
        raise ValueError(f"of_stages has the shape {of_stages.shape}, or variants that there aren't")
    return StageLayers(variants, numbers, of_stages)


def _check_of_layer(sharding: LayerSharding, layer: Layer) -> None:
    for phase in (*_PASSES, "step"):
        shape, wanted = sharding.cuts(phase).shape, (len(layer.operators(phase)), len(sharding.mesh_shape))
        if shape != wanted:
            raise ValueError(f"cuts of {layer.name} have the shape {list(shape)}, not {list(wanted)}")
    if sharding.flows is None:
        return
    for phase in _PASSES:
        flow = sharding.flows.of(phase)
        nodes = len(layer.operators(phase)) + len(flow.collectives)
        if flow.edges.size and not 0 <= flow.edges.min() <= flow.edges.max() < nodes:
            raise ValueError(f"an edge of {layer.name} is of a node outside of its {nodes}")


def _flows_data(layers: Sequence[LayerSharding]) -> Data:
    """Returns the different flows of passes, and for each layer the numbers of its own; those of a layer whose flows
    aren't known are None.

    Of each edge there is how much further its second node is than that of the edge before, and how far back from it
    the first one is: small numbers that come again and again.
    """
    numbers: dict[tuple[tuple[Collective, ...], bytes], int] = {}
    different, of_layers = list[Data](), list[list[int] | None]()
    for layer in layers:
        passes = [] if layer.flows is None else [layer.flows.of(phase) for phase in _PASSES]
        for flow in passes:
            if numbers.setdefault(_content(flow), len(numbers)) == len(different):
                before, node = flow.edges.T
                edges = {"steps": np.diff(node, prepend=0).tolist(), "back": (node - before).tolist()}
                different.append({"collectives": _collectives_data(flow.collectives), **edges})
        of_layers.append([numbers[_content(flow)] for flow in passes] or None)
    return {"flows": different, "flows_of_layers": of_layers}


def _content(flow: LayerFlow) -> tuple[tuple[Collective, ...], bytes]:
    return flow.collectives, flow.edges.tobytes()


def _flows_of(data: Mapping[str, Any]) -> list[LayerFlows | None]:
    """Returns each layer's flows; files from before there were any have none."""
    if "flows" not in data:
        return [None] * len(data["layers"])
    flows = []
    for flow in data["flows"]:
        node = np.cumsum(np.array(flow["steps"], dtype=np.int32))
        edges = np.stack([node - np.array(flow["back"], dtype=np.int32), node], axis=1).astype(np.int32)
        flows.append(LayerFlow(tuple(map(_collective, flow["collectives"])), edges))
    return [
        None
        if numbers is None
        else LayerFlows(dict(zip(_PASSES, (flows[n] for n in numbers), strict=True)).__getitem__)
        for numbers in data["flows_of_layers"]
    ]


def _collective(values: Sequence[Any]) -> Collective:
    collective = Collective(*values)
    one_of("collective", "kind", collective.kind, COLLECTIVE_KINDS)
    one_of("collective", "phase", collective.phase, COLLECTIVE_PHASES)
    for name in ("num_bytes", "count"):
        not_negative("collective", name, getattr(collective, name))
    if collective.axis not in (0, 1):
        raise ValueError(f"a collective is along axis {collective.axis!r}, but must be along 0 or 1")
    return collective


def _collectives_data(collectives: Iterable[Collective]) -> list[list[Any]]:
    return [[getattr(collective, name) for name in _COLLECTIVE] for collective in collectives]


def _layer_data(
    sharding: LayerSharding, collectives: dict[Collective, int], cuts: dict[bytes, tuple[int, Data]]
) -> Data:
    """Returns a layer as JSON data; what it may have in common with others is numbered, and added to what there is."""

    def number(cut: NDArray[np.bool_]) -> int:
        data = packed(cut, np.int8)
        return cuts.setdefault(cut.tobytes(), (len(cuts), data))[0]

    return {
        "mesh_shape": list(sharding.mesh_shape),
        "collectives": [collectives.setdefault(sent, len(collectives)) for sent in sharding.collectives],
        "cost": float(sharding.cost),
        **{name: number(getattr(sharding, name)) for name in _CUTS},
        **{name: getattr(sharding, name).tolist() for name in _PARTS},
    }


def _layer(
    data: Mapping[str, Any],
    flows: LayerFlows | None,
    collectives: Sequence[Collective],
    cuts: Sequence[NDArray[np.bool_]],
) -> LayerSharding:
    shape = tuple(map(operator.index, data["mesh_shape"]))
    if len(shape) != 2 or min(shape) < 1:
        raise ValueError(f"mesh_shape is {list(shape)}, but must be two lengths of at least 1")
    arrays: dict[str, Any] = {
        name: cuts[data[name]] if isinstance(data[name], int) else unpacked(data[name], np.int8).astype(np.bool_)
        for name in _CUTS
    }
    for name in _PARTS:
        arrays[name] = np.array(data[name], dtype=np.float64).reshape(-1, 2, 2)
        check_figures(name, arrays[name], (len(arrays[name]) if name == "temporary_moments" else len(MEMORY), 2, 2))
    if not len(arrays["temporary_moments"]):
        raise ValueError("temporary_moments is empty, but must have the first moment")
    sent = (collectives[own] if isinstance(own, int) else _collective(own) for own in data["collectives"])
    return LayerSharding(mesh_shape=shape, collectives=tuple(sent), cost=float(data["cost"]), flows=flows, **arrays)
