"""Forward and backward of single layers of transformers (Sailor): a model that was never seen on a GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from alpa_dejavu.costs.latency.learned import BlockModel, Blocks
from trials._folder import Folder, UnreadableError, measured
from trials._trial_set import MEASURED_S, Context, Learned, TrialSet, labels

_ROWS, _MODELS, _LINKS = "sailor/layer_profiles.csv", "sailor/llm_info.json", "sailor/intra_node_bandwidth_fits.json"
_FLOAT_BYTES, _LEAST_PARAMETERS = 4, 1e6
_PCIE_BYTES_PER_S, _FLOP_OF_BYTE = 32e9, 16

SHEETS = {
    "A100-40": ("A100", 156e12, 1555e9, 19.5e12),
    "A100-80": ("A100", 156e12, 2039e9, 19.5e12),
    "GH-96": ("H100", 494e12, 4000e9, 67e12),
    "RTX-2080": ("TU102", 13.4e12, 616e9, 13.4e12),
    "RTX-3090": ("GA102", 35.6e12, 936e9, 17.8e12),
    "Titan-RTX": ("TU102", 16.3e12, 672e9, 16.3e12),
    "V100-16": ("V100", 15.7e12, 900e9, 15.7e12),
}
"""Chip; operations of single-precision products (TF32 where there is), bytes, and operations of vectors per second.

By NVIDIA's data sheets; of GA102's vectors half, since the other half shares with integers. RTX-2080 is taken for a
2080 Ti: the profiled head's products would take more than all that a 2080 has.
"""


_FUSED_ATTENTION = ("LLAMA-3-8",)
"""Models whose attention the framework runs fused, without writing its matrix (transformers: Llama's, not OPT's)."""


def _load(folder: Folder) -> pd.DataFrame:
    numbers = ["micro_batch", "tp", "layer", "num_equal_layers", "forward_s", "backward_s"]
    rows = folder.table(_ROWS, ["model", "gpu"], numbers, counts=["micro_batch", "tp"])
    rows = measured(rows, ["forward_s", "backward_s"], _ROWS)
    rows[MEASURED_S] = rows["forward_s"] + rows["backward_s"]
    return rows.drop(columns=[name for name in ("forward_s", "backward_s", "update_s") if name in rows])


def _info(models: dict[str, Any], model: str, tp: int, layer: int) -> tuple[dict[str, float], dict[str, float], float]:
    """What is known of a layer and of the first, and what else divides it where its own degree isn't known."""
    if model not in models:
        raise UnreadableError(f"{_MODELS}: has no model {model!r}; it has {', '.join(models)}")
    known = [int(degree) for degree in models[model]]
    degree = max((each for each in known if each <= tp), default=min(known))
    layers = models[model][str(degree)]
    if str(layer) not in layers:
        there = f"which has 0 to {len(layers) - 1}"
        raise UnreadableError(f"{_ROWS}: layer {layer} of {model!r} isn't in {_MODELS}, {there}; mend or remove it")
    return layers[str(layer)], layers["0"], tp / degree


def _work(rows: pd.DataFrame, context: Context) -> pd.DataFrame:
    """Of each row, for one device: flop, kept bytes, summed bytes, and whether it is the head."""
    models = context.folder.document(_MODELS)
    found = []
    for model, tp, layer, batch in rows[["model", "tp", "layer", "micro_batch"]].itertuples(index=False, name=None):
        info, first, divided = _info(models, model, int(tp), int(layer))
        length = int(first["act_input_floats"] ** 0.5)
        is_head = info["act_output_floats"] % 2 == 1
        whole = _info(models, model, 1, 1)[0]["act_output_floats"]
        logits = info["act_input_floats"] - whole
        if info["params_floats"] > _LEAST_PARAMETERS:
            flop = 6 * info["params_floats"] * length + (0 if is_head else 12 * length * whole / (tp / divided))
        elif is_head and logits > 2.5 * whole:
            flop = 6 * logits * whole / length
        else:
            flop = 6 * info["params_floats"] * length
        is_block = info["params_floats"] > _LEAST_PARAMETERS and not is_head
        kept = _FLOAT_BYTES * (
            12 * whole / tp * divided if is_block and model in _FUSED_ATTENTION else info["act_mem_floats"]
        )
        summed = 0.0 if tp == 1 or flop < whole * length else _FLOAT_BYTES * whole
        found.append((batch * flop / divided, batch * kept / divided, batch * summed, not is_block))
    return pd.DataFrame(found, columns=["flop", "kept_bytes", "summed_bytes", "is_head"], index=rows.index)


def link_rate(links: dict[str, Any], gpu: str, tp: int) -> float:
    """Bytes per second among devices of a host, of large messages: a group is as slow as any smaller one."""
    fits = links.get(gpu, {})
    return min((float(fit[1]) for degree, fit in fits.items() if int(degree) <= max(tp, 2)), default=1e10)


def blocks_of(rows: pd.DataFrame, context: Context) -> Blocks:
    """The rows as the model takes them."""
    unknown = sorted(set(rows["gpu"]) - set(SHEETS))
    if unknown:
        raise UnreadableError(f"{_ROWS}: there is no data sheet of {unknown[0]!r}; there are {', '.join(SHEETS)}")
    links, work = context.folder.document(_LINKS), _work(rows, context)
    tp = rows["tp"].to_numpy(float)
    pairs = zip(rows["gpu"], rows["tp"], strict=True)
    rate = np.array([link_rate(links, gpu, int(degree)) for gpu, degree in pairs])
    return Blocks(
        gpu=np.array([SHEETS[gpu][0] for gpu in rows["gpu"]], dtype=np.str_),
        is_head=work["is_head"].to_numpy(dtype=np.bool_),
        products_s=work["flop"].to_numpy(float) / np.array([SHEETS[gpu][1] for gpu in rows["gpu"]]),
        traffic_s=work["kept_bytes"].to_numpy(float) / np.array([_streaming_rate(gpu) for gpu in rows["gpu"]]),
        exchange_s=work["summed_bytes"].to_numpy(float) * 2 * (tp - 1) / tp / rate,
        messages=tp - 1,
        through_host=rate < _PCIE_BYTES_PER_S,
        tensor_cores=np.array([SHEETS[gpu][0] in ("A100", "H100") for gpu in rows["gpu"]]),
    )


def _streaming_rate(gpu: str) -> float:
    """Bytes per second of what isn't a product: half the way from the memory's rate to the one that additions allow."""
    _, _, memory, vector = SHEETS[gpu]
    return float(np.sqrt(memory * vector / _FLOP_OF_BYTE))


def features(rows: pd.DataFrame, context: Context) -> pd.DataFrame:
    """The three terms of the model and what they are made of."""
    blocks, work = blocks_of(rows, context), _work(rows, context)
    table = pd.DataFrame({"compute_s": blocks.products_s, "traffic_s": blocks.traffic_s + blocks.exchange_s})
    table.index = rows.index
    table["exchange_s"], table["is_head"] = blocks.exchange_s, blocks.is_head * 1.0
    for name in ("flop", "kept_bytes", "summed_bytes"):
        table[name] = work[name]
    table["micro_batch"], table["tp"] = rows["micro_batch"], rows["tp"]
    return table


_GROUPS = labels("model", "gpu")
SETS = (TrialSet("sailor/layer_profiles", _load, _GROUPS, partial(Learned, BlockModel, blocks_of, _GROUPS), features),)
