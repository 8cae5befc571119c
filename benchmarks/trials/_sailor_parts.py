"""What Sailor's files say of layers: their sizes, and the seconds that they take on GPUs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import pandas as pd

from alpa_dejavu.clusters.gpus import Gpu, gpu_of
from alpa_dejavu.costs.latency import KernelLatency, LayerTimes
from alpa_dejavu.costs.runtime import runtime_profile
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.sharding.transformers import EXECUTIONS, PLAIN, transformer_model
from trials._folder import Folder, UnreadableError, measured

SEQUENCE = 2048
BYTES = 4.0
"""Of an element: the models train in single precision."""


def _gpt(hidden: int, heads: int, blocks: int, vocabulary: int) -> Transformer:
    return Transformer(
        hidden, blocks, heads, vocabulary, SEQUENCE, gated=False, rotary=False, rms_norm=False, biases="all",
        precision="float32",
    )  # fmt: skip


MODELS = {
    "OPT-350": _gpt(1024, 16, 24, 50272), "GPT-Neo-2.7": _gpt(2560, 20, 32, 50257), "OPT-30": _gpt(7168, 56, 48, 50272),
}  # fmt: skip
"""Those models that were profiled whose blocks are GPT's; the first two were run."""
NUM_LAYERS = {size.num_layers: name for name, size in MODELS.items()}
"""The model that has so many layers, the embedding and the head among them."""
GPUS = {
    "A100-40": "A100-SXM-40GB", "A100-80": "A100-SXM-80GB", "GH-96": "GH200-96GB", "RTX-2080": "RTX-2080-Ti",
    "RTX-3090": "RTX-3090", "Titan-RTX": "Titan-RTX", "V100-16": "V100-SXM2-16GB",
}  # fmt: skip
"""Their data sheets. RTX-2080 is taken for a 2080 Ti: the profiled head's products would take more than all that a 2080
has."""
_EXECUTION = dataclasses.replace(
    EXECUTIONS["deepspeed"], attention=PLAIN, weight_bytes=BYTES, gradient_bytes=BYTES, reduced_bytes=BYTES
)
_UPDATE_BYTES = 28.0
"""What Adam's update reads and writes of a parameter in single precision."""


def sheet(gpu: str) -> Gpu:
    """The data sheet of a GPU by Sailor's name for it."""
    found = gpu_of(GPUS[gpu])
    assert found is not None, "all are known"
    return found


_Pass = tuple[str, str, str, str]
"""A model, a GPU, the kind of a layer (embedding, block or head), and a phase."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """Sizes of layers, and seconds of their passes and updates.

    Attributes:
        sizes: by model, degree of tensor parallelism and layer, as the file has them.
        passes: the profiled seconds of passes.
        updates: of a model on a GPU the seconds of a layer's update, by the number of a device's parameters.
    """

    sizes: Mapping[str, Any]
    passes: Mapping[_Pass, LayerTimes]
    updates: Mapping[tuple[str, str], LayerTimes]

    def size(self, model: str, tp: int, layer: int, name: str) -> float:
        """Of a layer on one of `tp` devices; a division that wasn't measured continues the ones that were."""
        try:
            known = self.sizes[model]
            if str(tp) in known:
                return _size(model, layer, name, known[str(tp)][str(layer)][name])
            most, fewer = (_size(model, layer, name, known[degree][str(layer)][name]) for degree in ("4", "2"))
        except (KeyError, TypeError) as error:
            said = f"has no {name} of layer {layer} of {model!r} on {tp} devices ({error!r})"
            raise UnreadableError(f"sailor/llm_info.json: {said}; convert it again from its origin") from None
        return max(most - (fewer - most) * (1 - 4 / tp), 0.0)

    def pass_s(self, model: str, gpu: str, kind: str, phase: str, tp: int, samples: float) -> float:
        """The seconds of a layer's pass on `tp` devices, collectives included.

        A degree that wasn't profiled is between those that were, by its share of the work. A model that wasn't profiled
        on the GPU is between those that were by what the models of kernels say of its blocks, and by its bytes else.

        Raises:
            UnreadableError: no layer of the kind was profiled on the GPU.
        """
        known = self.passes.get((model, gpu, kind, phase))
        if known is not None and tp in known.seconds:
            return known.pass_s(tp, samples)
        if known is not None:
            degrees = sorted(known.seconds, reverse=True)
            seconds = [known.pass_s(degree, samples) for degree in degrees]
            return float(np.interp(1 / tp, [1 / degree for degree in degrees], seconds))
        others = [name for name in MODELS if (name, gpu, kind, phase) in self.passes]
        if not others:
            raise UnreadableError(f"sailor/layer_profiles.csv: has no {kind} on {gpu!r}; add its profile")
        points = sorted(
            (self._work(other, gpu, kind, phase, samples), self.pass_s(other, gpu, kind, phase, tp, samples))
            for other in others
        )
        times = LayerTimes({tp: (np.array([work for work, _ in points]), np.array([each_s for _, each_s in points]))})
        return times.pass_s(tp, self._work(model, gpu, kind, phase, samples))

    def _work(self, model: str, gpu: str, kind: str, phase: str, samples: float) -> float:
        if kind == "block":
            return _block_s(model, gpu, phase, samples)
        return samples * self.size(model, 1, layer_of(model, kind), "act_mem_bytes")

    def update_s(self, model: str, gpu: str, kind: str, tp: int) -> float:
        """The seconds of the optimizer's update of a layer on one of `tp` devices; of a model without profiled updates
        on the GPU by those of others, and where there are none by the memory's rate.
        """
        parameters = self.size(model, tp, layer_of(model, kind), "params_floats")
        others = [(name, on) for name, on in self.updates if on == gpu]
        known = [(model, gpu)] if (model, gpu) in others else others
        if not known:
            return _UPDATE_BYTES * parameters / sheet(gpu).memory_bytes_per_s
        counts, seconds = np.concatenate([self.updates[key].seconds[1] for key in known], axis=1)
        order = np.argsort(counts)
        return LayerTimes({1: (counts[order], seconds[order])}).pass_s(1, parameters)


def layer_of(model: str, kind: str) -> int:
    """The number of the embedding, of a block like all but perhaps the first, or of the head."""
    return {"embedding": 0, "block": 2, "head": MODELS[model].num_layers - 1}[kind]


@functools.cache
def _block_s(model: str, gpu: str, phase: str, samples: float) -> float:
    """What the models of kernels say of a whole block on a GPU."""
    operators = transformer_model(MODELS[model], _EXECUTION, samples).layers[1].operators(phase)
    predicted = KernelLatency().predict(operators, sheet(gpu).device())
    return runtime_profile("deepspeed").latency(predicted, operators).total_s


def _size(model: str, layer: int, name: str, value: Any) -> float:
    if isinstance(value, (str, bool)) or value is None or not 0 <= float(value) < np.inf:
        said = f"{name} of layer {layer} of {model!r} is {value!r}, but must be a finite number of at least 0"
        raise UnreadableError(f"sailor/llm_info.json: {said}; mend it")
    return float(value)


@functools.cache
def parts(folder: Folder) -> Parts:
    """All of them, of a folder."""
    rows, sizes = _profiles(folder), Parts(folder.document("sailor/llm_info.json"), {}, {})
    passes = {}
    for (model, gpu, kind), part in rows.groupby(["model", "gpu", "kind"]):
        for phase in ("forward", "backward"):
            times = {
                int(tp): (each["micro_batch"].to_numpy(float), each[f"{phase}_s"].to_numpy(float))
                for tp, each in part.sort_values("micro_batch").groupby("tp")
            }
            passes[model, gpu, kind, phase] = LayerTimes(times)
    updates = {}
    for (model, gpu), part in rows[(rows["update_s"] > 0) & (rows["kind"] == "block")].groupby(["model", "gpu"]):
        counts = [sizes.size(model, int(tp), layer_of(model, "block"), "params_floats") for tp in part["tp"]]
        middle = part["update_s"].groupby(np.array(counts)).median()
        updates[model, gpu] = LayerTimes({1: (middle.index.to_numpy(float), middle.to_numpy(float))})
    return Parts(sizes.sizes, passes, updates)


def _profiles(folder: Folder) -> pd.DataFrame:
    """Embeddings, blocks and heads of the models, with their `kind`; an embedding's backward pass takes nothing."""
    path = "sailor/layer_profiles.csv"
    numbers = ["micro_batch", "tp", "layer", "num_equal_layers", "forward_s", "backward_s"]
    rows = folder.table(path, ["model", "gpu"], numbers, ["update_s"], counts=["micro_batch", "tp"])
    rows = rows[rows["model"].isin(MODELS)]
    last = rows["model"].map({name: size.num_layers - 1 for name, size in MODELS.items()})
    covers = (rows["layer"] <= 2) & (rows["layer"] + rows["num_equal_layers"] > 2)
    kinds = np.select([rows["layer"] == 0, covers, rows["layer"] == last], ["embedding", "block", "head"], "")
    rows = rows.assign(kind=kinds, backward_s=rows["backward_s"].where(rows["layer"] > 0, 0.0))
    rows = rows[rows["kind"] != ""].reset_index(drop=True)
    first = measured(rows[rows["kind"] == "embedding"], ["forward_s"], path)
    return pd.concat([first, measured(rows[rows["kind"] != "embedding"], ["forward_s", "backward_s"], path)])
