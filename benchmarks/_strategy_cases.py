"""The cases of AMP's evaluation: their layers as AMP describes them, their links as it states them.

With the layers' profiled forward times (a folder with `layer_forward_MODEL_DEVICE_tpN.csv`) a layer takes what its
profile says, and backward twice as long, as in AMP's own model; without them, what the roofline says of its operations.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

import numpy as np

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.latency import Latency, LatencyModel
from alpa_dejavu.problem import Cluster, Device, Host, Layer, Link, Model, Operator, Operators, Tensor

HIDDEN, TOKENS, VOCABULARY = 1024, 1024, 52256
BOTTOM = 9
"""The width of TransGAN's first feature map, by which its sequences grow: what AMP's logged estimates come out with."""
ELEMENT_BYTES = 4.0
OPTIMIZER_BYTES = 8.0
"""The bytes of a parameter's state: Adam's two moments, in single precision as everything here is."""
UNBATCHED = 2.0**-20
"""The share of a profiled layer's operations without a batch, by which its tensor-parallel degree is told."""


@final
@dataclasses.dataclass(frozen=True)
class LayerSizes:
    """One layer, of one sample.

    Attributes:
        parameters: trained ones; those of a layer with `tied_to` are that layer's.
        output: elements that it hands on.
        kept: elements that it keeps for its backward.
        summed: elements of each all-reduce among tensor-parallel devices, forward and backward.
    """

    profile: int
    flop: float
    parameters: float
    output: float
    kept: float
    tied_to: int | None = None
    summed: tuple[float, ...] = ()


@final
@dataclasses.dataclass(frozen=True)
class Case:
    """A model on a cluster, with the batch of AMP's evaluation, and what AMP says that it won there over Megatron."""

    name: str
    model_name: str
    layers: Sequence[LayerSizes]
    cluster: Cluster
    batch: int
    amp_says: float | None


def gpt2() -> list[LayerSizes]:
    """24 blocks between the embedding and the head, with the layers between that do nothing, as in AMP's list."""
    wide, through = float(TOKENS * HIDDEN), float(TOKENS)
    pairs = 16.0 * TOKENS**2
    nothing = LayerSizes(0, through, 0.0, wide, 0.0)
    flop = 24.0 * TOKENS * HIDDEN**2 + 4 * TOKENS**2 * HIDDEN
    block = LayerSizes(0, flop, 12.0 * HIDDEN**2, wide, 17 * wide + 2.5 * pairs, summed=(wide,) * 4)
    words = float(VOCABULARY * HIDDEN)
    logits = float(TOKENS * VOCABULARY)
    head = LayerSizes(0, 2 * logits * HIDDEN, words, logits, 2 * logits, tied_to=0, summed=(wide,) * 2)
    last = dataclasses.replace(nothing, output=1.0, kept=logits)
    found = [LayerSizes(0, wide, words, wide, wide), nothing, *[block] * 24, nothing, nothing, head, last]
    return [dataclasses.replace(layer, profile=n) for n, layer in enumerate(found)]


def transgan() -> list[LayerSizes]:
    """Twelve wide blocks on few tokens, twelve narrow ones on many in windows, after a layer that widens the noise.

    All hand on as many elements as the first map has, and the first layer has no parameters, as AMP's code counts
    them. What they keep is an estimate.
    """
    tokens = float(BOTTOM**2)
    handed = tokens * HIDDEN
    first = LayerSizes(0, 2 * 256 * handed, 0.0, handed, handed)
    flop = 24 * tokens * HIDDEN**2 + 4 * tokens**2 * HIDDEN
    wide = LayerSizes(0, flop, 12.0 * HIDDEN**2, handed, 17 * handed, summed=(handed,) * 4)
    windows, window, narrow = 256.0, 4 * tokens, HIDDEN / 64
    elements = windows * window * narrow
    flop = 24 * elements * narrow + 4 * windows * window**2 * narrow
    kept = 17 * elements + 2.5 * windows * window**2
    fine = LayerSizes(0, flop, 12 * narrow**2, handed, kept, summed=(elements,) * 4)
    found = [first, *[wide] * 12, *[fine] * 12]
    rows = [0, *range(3, 15), *range(41, 53)]
    return [dataclasses.replace(layer, profile=row) for layer, row in zip(found, rows, strict=True)]


def model_of(layers: Sequence[LayerSizes], name: str, profiled: bool = False) -> Model:
    """The layers in a row, for a micro-batch of one sample; all-reduces are in their times where these are profiled."""
    last, operators = 2 * len(layers) - 1, dict[tuple[int, float], Operators]()
    made, tensors = [], []
    for n, sizes in enumerate(layers):
        key = sizes.profile, sizes.flop
        if key not in operators:
            operators[key] = _work(sizes, name, 1)
        summed = () if profiled else tuple(elements * ELEMENT_BYTES for elements in sizes.summed)
        back = _work(sizes, name, 2)
        made.append(Layer(f"{name} {n}", operators[key], back, Operators.of([]), exchanged_bytes=summed))
        tensors.append(Tensor(sizes.kept * ELEMENT_BYTES, "activation", n, (last - n,)))
        if n + 1 < len(layers):
            handed = sizes.output * ELEMENT_BYTES
            tensors.append(Tensor(handed, "activation", n, (n + 1,)))
            tensors.append(Tensor(handed, "activation", last - n - 1, (last - n,)))
        if sizes.parameters and sizes.tied_to is None:
            users = [n, *(m for m, other in enumerate(layers) if other.tied_to == n)]
            num_bytes = sizes.parameters * ELEMENT_BYTES
            positions = tuple(sorted(p for user in users for p in (user, last - user)))
            tensors.append(Tensor(num_bytes, "parameter", -1, positions))
            tensors.append(Tensor(num_bytes, "gradient", -1, tuple(users)))
            tensors.append(Tensor(sizes.parameters * OPTIMIZER_BYTES, "optimizer", -1, tuple(users)))
    return Model(tuple(made), tuple(tensors))


def _work(sizes: LayerSizes, name: str, passes: int) -> Operators:
    moved = (sizes.kept + sizes.output) * ELEMENT_BYTES
    return Operators.of(
        [
            Operator(
                "dot", f"{name}/{sizes.profile}", (), (), "float32", sizes.flop,
                read_bytes=moved, written_bytes=moved, unbatched_flop=sizes.flop * UNBATCHED, count=passes,
            )
        ]
    )  # fmt: skip


@final
class ProfiledLayers(LatencyModel):
    """Layers take what their profile says: seconds of a sample by device and tensor-parallel degree.

    Args:
        seconds: by (model, device's kind, degree), of each row of the profile.
    """

    def __init__(self, seconds: Mapping[tuple[str, str, int], Sequence[float]]) -> None:
        self._seconds = seconds

    @classmethod
    def of(cls, folder: Path) -> ProfiledLayers:
        """Reads a folder.

        Raises:
            ValueError: it has no profile.
        """
        found = {}
        for path in sorted(folder.glob("layer_forward_*_tp*.csv")):
            _, _, model, device, degree = path.stem.split("_")
            with path.open(encoding="utf-8", newline="") as rows:
                found[model, device, int(degree[2:])] = [
                    float(row["forward_s_per_sample"]) for row in csv.DictReader(rows)
                ]
        if not found:
            raise ValueError(f"{folder} has no layer_forward_MODEL_DEVICE_tpN.csv; give the folder of AMP's profiles")
        return cls(found)

    def predict(self, operators: Operators, device: Device) -> Latency:
        """Seconds of each layer's operator, and nothing known of how sure they are.

        Those of a degree that wasn't profiled, such as 3 devices of 12, are the next smaller one's.

        Raises:
            ValueError: the device wasn't profiled.
        """
        found = []
        for n, record in enumerate(operators.records):
            model, row = record.primitive.split("/")
            degree = round(record.unbatched_flop / operators.unbatched_flop[n])
            whole = float(operators.flop[n]) * degree - record.unbatched_flop
            kind = device.name.split("-")[0].lower()
            profiled = [each for *which, each in self._seconds if which == [model, kind] and each <= degree]
            if not profiled:
                raise ValueError(f"{model} has no profile on {kind}; plan for devices that have one")
            samples = whole / (record.flop - record.unbatched_flop)
            found.append(self._seconds[model, kind, max(profiled)][int(row)] * samples * float(operators.count[n]))
        mean = np.array(found)
        return Latency(mean, np.zeros_like(mean))


def cases() -> list[Case]:
    """The homogeneous cluster, the one of unlike hosts, and the model of unlike layers."""
    t4, v100 = ("g4dn.12xlarge", 50e9, 50e9), ("p3.8xlarge", 10e9, 170e9)
    return [
        Case("homogeneous", "gpt2", gpt2(), _cluster("4 x g4dn.12xlarge", [t4] * 4), 32, None),
        Case("unlike hosts", "gpt2", gpt2(), _cluster("3 x p3.8xlarge, g4dn.12xlarge", [v100] * 3 + [t4]), 32, 1.54),
        Case("unlike layers", "transgan", transgan(), _cluster("4 x p3.8xlarge", [v100] * 4), 64, 1.77),
    ]


def without_starts(cluster: Cluster) -> Cluster:
    """The cluster with devices on which nothing is paid but what the profile has: its times include all starts."""
    hosts = []
    for host in cluster.hosts:
        device = dataclasses.replace(host.device, dispatch_s=0.0, step_s=0.0)
        hosts.append(dataclasses.replace(host, device=device))
    return dataclasses.replace(cluster, hosts=tuple(hosts))


def _cluster(name: str, machines: Sequence[tuple[str, float, float]]) -> Cluster:
    """Hosts of machine types with bits per second between and within; a link has the slower one of its two ends."""
    known = [named_cluster(machine) for machine, _, _ in machines]
    hosts = tuple(Host(f"{one.hosts[0].name[:-2]}-{n}", one.hosts[0].device, 4) for n, one in enumerate(known))
    latency_s = named_cluster(machines[0][0], 2).links[0][1].latency_s
    links = [
        [
            Link(known[a].links[0][0].latency_s, machines[a][2] / 8)
            if a == b
            else Link(latency_s, min(machines[a][1], machines[b][1]) / 8)
            for b in range(len(hosts))
        ]
        for a in range(len(hosts))
    ]
    return Cluster(name, hosts, tuple(map(tuple, links)))
