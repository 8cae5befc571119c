"""What Sailor's files say of layers and links: profiles, sizes of layers, bandwidth fits."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fitting import Fitted, fit
from trials._bandwidth import BandwidthFit
from trials._folder import Folder, UnreadableError, measured
from trials._layer_profile import LayerProfile

NUM_LAYERS = {26: "OPT-350", 34: "GPT-Neo-2.7", 50: "OPT-30"}
"""The model that has so many layers, the embedding and the head among them."""
SEQUENCE = 2048
BYTES = 4.0
"""Of an element: the models train in single precision."""
GPUS = {
    "A100-40": 1.555e12,
    "A100-80": 2.039e12,
    "GH-96": 4.0e12,
    "RTX-2080": 0.616e12,
    "RTX-3090": 0.936e12,
    "Titan-RTX": 0.672e12,
    "V100-16": 0.9e12,
}
"""Bytes per second of their memories, by the data sheets."""
_NOISE_FLOOR = 0.02


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """Layers' sizes, learned layers' times, and bandwidths."""

    sizes: Mapping[str, Any]
    inside: Mapping[str, Mapping[str, Any]]
    between: Mapping[str, Mapping[str, Any]]
    blocks: Fitted | None = None
    heads: Fitted | None = None
    updates: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def update_s(self, model: str, gpu: str, tp: int, layer: int) -> float:
        """Of the optimizer's update of a layer on one of `tp` devices, by what a parameter takes on that GPU."""
        a_parameter = self.updates.get(gpu, float(np.median(list(self.updates.values()))))
        return a_parameter * self.size(model, tp, layer, "params_floats")

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

    def hidden(self, model: str) -> float:
        """The width of a model."""
        return self.size(model, 2, 2, "act_output_floats") / SEQUENCE

    def inside_bytes_per_s(self, gpu: str, devices: int, num_bytes: float) -> float:
        """Of a collective of a node's GPUs."""
        fits = self._of(self.inside, gpu, "intra_node_bandwidth_fits.json")
        enough = [int(count) for count in fits if int(count) >= devices] or [max(map(int, fits))]
        return BandwidthFit.of(fits[str(min(enough))]).bytes_per_s(num_bytes)

    def between_bytes_per_s(self, ends: tuple[tuple[str, int], tuple[str, int]], num_bytes: float) -> float:
        """Between two nodes, of all GPUs of a node that take part together.

        More GPUs of a node are never slower than fewer: fits that say so (of one pair some are 25 times slower than the
        folder's README and the other counts say) give way to those with fewer.
        """
        rates = []
        for (gpu, count), (peer, peers) in (ends, ends[::-1]):
            fits = self._of(self.between, gpu, "network_fits_between.json")
            for devices, by_peer in fits.items():
                for others, published in by_peer.get(peer, {}).items():
                    if int(devices) <= count and int(others) <= peers:
                        rates.append(BandwidthFit.of(published).bytes_per_s(num_bytes))
        if not rates:
            raise UnreadableError(f"network_fits_between.json: has no fit between {ends[0]} and {ends[1]}; add one")
        return max(rates)

    def layer(self, model: str, gpu: str, tp: int, micro_batch: float, layer: int, is_head: bool) -> dict[str, float]:
        """The columns of `LayerProfile`."""
        if gpu not in GPUS:
            raise UnreadableError(f"plan: GPU {gpu!r} isn't among those that were profiled: {', '.join(GPUS)}")
        hidden, tokens = self.hidden(model), micro_batch * SEQUENCE
        flop = 6 * tokens * self.size(model, tp, layer, "params_floats")
        reduced_s = 0.0
        if not is_head:
            flop += 12 * tokens * SEQUENCE * hidden / tp
            num_bytes = tokens * hidden * BYTES
            rate = self.inside_bytes_per_s(gpu, tp, num_bytes)
            reduced_s = 4 * num_bytes * 2 * (tp - 1) / tp / rate
        return {
            "gpu": float(list(GPUS).index(gpu)),
            "flop": flop,
            "moved_bytes": self.size(model, tp, layer, "act_mem_bytes") * micro_batch,
            "reduced_s": reduced_s,
            "log_hidden": float(np.log(hidden)),
            "log_tp": float(np.log(tp)),
            "log_micro_batch": float(np.log(micro_batch)),
        }

    @functools.cache  # noqa: B019 - one for each folder, kept as long as the folder's
    def device_s(self, model: str, gpu: str, tp: int, micro_batch: float) -> tuple[float, float]:
        """Forward and backward of a block and of the head on the device, launches apart."""
        if self.blocks is None or self.heads is None:
            raise ValueError("parts: no layers' times were fitted; use parts(folder)")
        last = next(count for count, name in NUM_LAYERS.items() if name == model) - 1
        block = _device_s(self.blocks, self.layer(model, gpu, tp, micro_batch, 2, False))
        return block, _device_s(self.heads, self.layer(model, gpu, tp, micro_batch, last, True))

    @staticmethod
    def _of(fits: Mapping[str, Any], gpu: str, name: str) -> Mapping[str, Any]:
        if gpu not in fits:
            raise UnreadableError(f"{name}: has no GPU {gpu!r}, has {', '.join(fits)}; add its fit")
        found: Mapping[str, Any] = fits[gpu]
        return found


def _size(model: str, layer: int, name: str, value: Any) -> float:
    if isinstance(value, (str, bool)) or value is None or not 0 <= float(value) < np.inf:
        said = f"{name} of layer {layer} of {model!r} is {value!r}, but must be a finite number of at least 0"
        raise UnreadableError(f"sailor/llm_info.json: {said}; mend it")
    return float(value)


@functools.cache
def parts(folder: Folder) -> Parts:
    """All of them, with times of layers fitted to the folder's profiles."""
    bare = Parts(
        folder.document("sailor/llm_info.json"),
        folder.document("sailor/intra_node_bandwidth_fits.json"),
        folder.document("sailor/network_fits_between.json"),
    )
    rows = _profiles(folder)
    is_block = rows["layer"] == 2
    return dataclasses.replace(
        bare,
        blocks=_fit(bare, rows[is_block]),
        heads=_fit(bare, rows[~is_block]),
        updates=_updates(bare, rows[is_block]),
    )


def _updates(bare: Parts, rows: pd.DataFrame) -> dict[str, float]:
    """Seconds that the update of one parameter takes, by GPU: the median over its profiled blocks."""
    known = rows[rows["update_s"] > 0]
    sizes = [
        bare.size(model, int(tp), 2, "params_floats") for model, tp in zip(known["model"], known["tp"], strict=True)
    ]
    found = (known["update_s"] / np.array(sizes)).groupby(known["gpu"]).median()
    return {str(gpu): float(seconds) for gpu, seconds in found.items()}


def _fit(bare: Parts, rows: pd.DataFrame) -> Fitted:
    asked = [
        bare.layer(row.model, row.gpu, int(row.tp), float(row.micro_batch), int(row.layer), row.layer != 2)
        for row in rows.itertuples()
    ]
    seconds: NDArray[np.float64] = (rows["forward_s"] + rows["backward_s"]).to_numpy(float)
    return fit(LayerProfile(GPUS), _columns(asked), seconds, floor=_NOISE_FLOOR)


def _device_s(fitted: Fitted, layer: dict[str, float]) -> float:
    """Without launches: they are the plan's."""
    rows, physics = _columns([layer]), fitted.physics
    assert isinstance(physics, LayerProfile)
    return float(physics.device_s(fitted.values, fitted.deviation(rows), rows)[0])


def _columns(layers: list[dict[str, float]]) -> dict[str, NDArray[np.float64]]:
    return {name: np.array([layer[name] for layer in layers]) for name in layers[0]}


def _profiles(folder: Folder) -> pd.DataFrame:
    """Blocks and heads of the models that plans are made of."""
    path = "sailor/layer_profiles.csv"
    rows = folder.table(path, ["model", "gpu"], ["micro_batch", "tp", "layer", "forward_s", "backward_s"], ["update_s"])
    heads = rows["model"].map({name: count - 1 for count, name in NUM_LAYERS.items()})
    rows = rows[heads.notna() & ((rows["layer"] == 2) | (rows["layer"] == heads))]
    return measured(rows.reset_index(drop=True), ["forward_s", "backward_s"], path)
