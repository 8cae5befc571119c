"""Choices among measured plans: jobs whose plans were all measured, described as models, clusters and stages.

Where the seconds are measured ones of whole iterations they are the truth as they are. Where single layers were
measured (Sailor), a plan's truth is the simulated step of its measured layers, with the links' measured rates.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from _strategy_cases import ELEMENT_BYTES, LayerSizes, cases, model_of, without_starts
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.gpus import gpu_of
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning import GivenStage
from alpa_dejavu.planning.rivals.stages import config_of, equal_layers
from alpa_dejavu.problem import Cluster, Device, Layer, Link, Model, Operator, Operators, Submesh, Tensor
from alpa_dejavu.simulation.step import StageTimes, simulate
from published._folder import Folder

__all__ = ["Choice", "Option", "choices"]

_VOCABULARY = 51200
_SAILORS_MODELS = {
    name: Transformer(hidden, blocks, heads, vocabulary, 2048, gated=False, rotary=False, rms_norm=False, biases="all")
    for name, hidden, heads, blocks, vocabulary in (
        ("OPT-350", 1024, 16, 24, 50272), ("GPT-Neo-2.7", 2560, 20, 32, 50257), ("OPT-30", 7168, 56, 48, 50272),
    )
}  # fmt: skip
"""Those models that Sailor profiled whose blocks are GPT's."""
_SAILORS_GPUS = {
    "A100-40": "A100-SXM-40GB", "A100-80": "A100-SXM-80GB", "GH-96": "GH200-96GB", "RTX-2080": "RTX-2080-Ti",
    "RTX-3090": "RTX-3090", "Titan-RTX": "Titan-RTX", "V100-16": "V100-SXM2-16GB",
}  # fmt: skip
"""Their data sheets. RTX-2080 is taken for a 2080 Ti: the profiled head's products would take more than all that a 2080
has."""
_KEPT_BYTES, _KEPT_PAIRS = 34.0, 5.0
"""The bytes that a block keeps of each element of its input, and of each pair of tokens of a head, in half precision:
Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022, section 4.1."""
FITTED_DEPTH = 12
"""The blocks of the models of vTrain by which it is known how long a kernel takes to start there."""
_KERNELS = 14.0
"""The kernels of a block's forward pass besides its products: two normalisations, biases, gelu, a masked softmax,
dropouts, residuals, transposes of heads."""


@final
@dataclasses.dataclass(frozen=True)
class Option:
    """A plan that may be chosen: its stages, samples of a micro-batch, micro-batches of a step, measured seconds."""

    stages: tuple[GivenStage, ...]
    micro_batch: int
    num_micro_batches: int
    measured_s: float


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """A job on a cluster, by data sheets, with at least two plans that were measured for it, by a model of a
    micro-batch of one sample; the source is the set of measurements, the group what a split keeps together (GPU,
    cluster or models).
    """

    source: str
    group: str
    name: str
    model: Model
    cluster: Cluster
    options: tuple[Option, ...]


def choices(folder: Folder) -> Iterator[Choice]:
    """All choices, of all sets."""
    yield from _vtrain(folder)
    yield from _amp(folder)
    yield from _layers(folder)
    yield from _kernels(folder)


def _block(hidden: int, heads: int, tokens: int, name: str, element_bytes: float, dtype: str) -> list[Operator]:
    """A transformer's block, forward, for one sample: its products, and what moves between them."""
    wide, size = tokens * hidden, element_bytes

    def product(what: str, width: int, inner: int) -> Operator:
        return Operator(
            "dot", f"{name}/{what}", ((tokens, inner), (inner, width)), ((tokens, width),), dtype,
            2.0 * tokens * width * inner,
            read_bytes=size * (tokens * inner + inner * width), written_bytes=size * tokens * width,
            unbatched_read_bytes=size * inner * width,
        )  # fmt: skip

    head = hidden // heads
    pairs = Operator(
        "dot", f"{name}/pairs", ((heads, tokens, head), (heads, head, tokens)), ((heads, tokens, tokens),), dtype,
        2.0 * tokens**2 * hidden, read_bytes=2 * size * wide, written_bytes=size * heads * tokens**2, count=2.0,
    )  # fmt: skip
    moved = size / 2 * (_KEPT_BYTES * wide + _KEPT_PAIRS * heads * tokens**2) / _KERNELS
    other = Operator(
        "elementwise", f"{name}/other", ((tokens, hidden),), ((tokens, hidden),), dtype, moved,
        read_bytes=moved, written_bytes=moved, count=_KERNELS,
    )  # fmt: skip
    return [
        product("qkv", 3 * hidden, hidden), pairs, product("project", hidden, hidden),
        product("up", 4 * hidden, hidden), product("down", hidden, 4 * hidden), other,
    ]  # fmt: skip


def gpt(hidden: int, heads: int, blocks: int, tokens: int, vocabulary: int, element_bytes: float, dtype: str) -> Model:
    """A GPT of an embedding, blocks and a head, for a micro-batch of one sample."""
    size, wide = element_bytes / ELEMENT_BYTES, float(tokens * hidden)
    words, logits = float(vocabulary * hidden), float(tokens * vocabulary)
    kept = _KEPT_BYTES / 2 * wide + _KEPT_PAIRS / 2 * heads * tokens**2
    embedding = LayerSizes(0, wide, words * size, wide * size, wide * size)
    block = LayerSizes(1, 1.0, 12.0 * hidden**2 * size, wide * size, kept * size, summed=(wide * size,) * 4)
    head = LayerSizes(2, 1.0, 0.0, size, 2 * logits * size, summed=(wide * size,) * 2)
    made = model_of([embedding, *[block] * blocks, head], "gpt")
    once = _block(hidden, heads, tokens, "gpt", element_bytes, dtype)
    moved = 2 * element_bytes * logits
    last = [
        Operator(
            "dot", "gpt/head", ((tokens, hidden), (hidden, vocabulary)), ((tokens, vocabulary),), dtype,
            2 * logits * hidden, read_bytes=element_bytes * (wide + words), written_bytes=element_bytes * logits,
            unbatched_read_bytes=element_bytes * words,
        ),
        Operator(
            "elementwise", "gpt/loss", ((tokens, vocabulary),), ((tokens, vocabulary),), dtype, logits,
            read_bytes=moved, written_bytes=moved,
        ),
    ]  # fmt: skip
    forward, back = Operators.of(once), Operators.of([_twice(each) for each in once])
    ends = Operators.of(last), Operators.of([_twice(each) for each in last])
    layers = [
        dataclasses.replace(layer, forward=forward, backward=back, update=_update(12.0 * hidden**2, dtype))
        for layer in made.layers
    ]
    layers[0] = dataclasses.replace(made.layers[0], update=_update(words, dtype))
    layers[-1] = dataclasses.replace(layers[-1], forward=ends[0], backward=ends[1], update=Operators.of([]))
    return dataclasses.replace(made, layers=tuple(layers))


def _twice(forward: Operator) -> Operator:
    """A backward pass is two products where the forward is one, and moves twice as much."""
    return dataclasses.replace(forward, count=2 * forward.count)


def _update(parameters: float, dtype: str) -> Operators:
    """Adam's update: it reads a gradient, a parameter and two moments, and writes these three, in full precision."""
    return Operators.of(
        [
            Operator(
                "elementwise", "gpt/update", ((int(parameters),),), ((int(parameters),),), dtype, 12 * parameters,
                read_bytes=16 * parameters, written_bytes=12 * parameters, unbatched_flop=12 * parameters,
                unbatched_read_bytes=16 * parameters, unbatched_written_bytes=12 * parameters,
            )
        ]
    )  # fmt: skip


def _stages(ends: Sequence[tuple[int, int]], across: int, along: int, devices_per_host: int) -> tuple[GivenStage, ...]:
    """Stages of so many data-parallel times tensor-parallel devices each."""
    size = across * along
    submesh = Submesh(max(size // devices_per_host, 1), min(size, devices_per_host))
    return tuple(GivenStage(first, last, submesh, config_of(across, along)) for first, last in ends)


def _vtrain(folder: Folder) -> Iterator[Choice]:
    """Iterations of GPTs by Megatron-LM on 2 to 8 A100 of a host."""
    rows = pd.read_csv(folder.path / "vtrain-a100/single_node.csv")
    job = ["hidden", "heads", "layers", "seq_len", "gpus", "global_batch"]
    (host,) = without_starts(named_cluster("dgx-a100")).hosts
    device = dataclasses.replace(host.device, kernel_s=_eager_kernel_s(rows[rows["layers"] == FITTED_DEPTH]))
    within = named_cluster("dgx-a100").links[0][0]
    known: dict[tuple[int, ...], Model] = {}
    for sizes, part in _unlike(rows, job).groupby(job):
        hidden, heads, blocks, tokens, gpus, batch = map(int, sizes)
        shape = hidden, heads, blocks, tokens
        if shape not in known:
            known[shape] = gpt(*shape, _VOCABULARY, 2.0, "float16")
        cluster = Cluster.uniform(f"{gpus} x A100", ["host"], device, gpus, within, within)
        options = []
        for row in part.itertuples():
            stages = _stages(_with_ends(blocks, row.pp), row.dp, row.tp, gpus)
            options.append(
                Option(stages, row.micro_batch * row.dp, batch // (row.micro_batch * row.dp), row.iteration_s)
            )
        if len(options) > 1:
            name = f"GPT of {blocks} x {hidden} on {gpus} A100, batch {batch}"
            yield Choice("vTrain", f"{blocks} blocks", name, known[shape], cluster, tuple(options))


def _unlike(rows: pd.DataFrame, job: list[str]) -> pd.DataFrame:
    """The rows of the batch with most plans of each job: an iteration is affine in its batch, others say the same."""
    plans = rows.groupby(job).size().reset_index(name="plans").sort_values(["plans", "global_batch"])
    most = plans.drop_duplicates(job[:-1], keep="last").drop(columns="plans")
    return rows.merge(most, on=job)


def _eager_kernel_s(rows: pd.DataFrame) -> float:
    """Seconds in which a framework without a compiler starts a kernel, which a tiny micro-batch is bound by."""
    division = ["hidden", "gpus", "tp", "dp", "pp", "micro_batch"]
    least = []
    for (_, _, _, dp, pp, size), part in rows.groupby(division):
        counts = np.sort(part["global_batch"].unique()) / (size * dp)
        if pp == 1 and len(counts) > 1:
            seconds = part.sort_values("global_batch")["iteration_s"].to_numpy()
            least.append((seconds[-1] - seconds[0]) / (counts[-1] - counts[0]))
    products = len(_block(64, 1, 1, "gpt", 2.0, "float16"))
    kernels = 3 * (products + _KERNELS) * float(rows["layers"].iloc[0])
    return float(np.median(np.sort(least)[: len(least) // 10 + 1])) / kernels


def _amp(folder: Folder) -> Iterator[Choice]:
    """AMP's trials of GPT-2 on four hosts of T4, of each size of micro-batch; and of unlike layers on V100."""
    for case, file in zip(cases()[::2], ("homogeneous", "het_model"), strict=True):
        rows = pd.read_csv(folder.path / f"amp/{file}_trials.csv").dropna(subset=["measured_s"])
        model, cluster = model_of(case.layers, case.model_name), without_starts(case.cluster)
        for size, part in rows.groupby("micro_batch"):
            options = []
            for row in part.itertuples():
                cuts = json.loads(row.layer_boundaries)
                profiled = [layer.profile for layer in case.layers]
                ends = [0, *(int(np.searchsorted(profiled, cut)) for cut in cuts[1:-1]), len(profiled)]
                spans = [(a, b - 1) for a, b in itertools.pairwise(ends)]
                count = case.batch // (row.micro_batch * row.dp)
                if count and all(b >= a for a, b in spans):
                    stages = _stages(spans, row.dp, row.tp, 4)
                    options.append(Option(stages, row.micro_batch * row.dp, count, row.measured_s))
            if len(options) > 1:
                name = f"{case.name}, micro-batches of {size}"
                yield Choice("AMP", case.name, name, model, cluster, tuple(options))


_LINKS = {"A100-40": 300e9, "A100-80": 300e9, "GH-96": 450e9, "V100-16": 150e9}
_PCIE_BYTES_PER_S = 16e9
"""Bytes per second from one GPU to another, by NVIDIA's data sheets; of the others by PCIe 3.0 x16."""
_BATCH = 32


def _layers(folder: Folder) -> Iterator[Choice]:
    """Pipelines of layers that Sailor measured on seven GPUs, one host each."""
    rows = pd.read_csv(folder.path / "sailor/layer_profiles.csv")
    fits = folder.document("sailor/intra_node_bandwidth_fits.json")
    for (model, gpu), part in rows[rows["model"].isin(_SAILORS_MODELS)].groupby(["model", "gpu"]):
        size = _SAILORS_MODELS[model]
        hidden, blocks, tokens = size.hidden, size.num_blocks, size.sequence
        seconds = _layer_seconds(part, blocks)
        made = gpt(hidden, size.num_heads, blocks, tokens, size.vocabulary, 4.0, "float32")
        for devices in (2, 4, 8):
            cluster = _one_host(gpu, devices)
            options = []
            for (along, each), measured in seconds.items():
                for count in (n for n in (1, 2, 4, 8) if devices % (along * n) == 0):
                    across = devices // along // count
                    if _BATCH % (each * across) == 0:
                        ends, steps = _with_ends(blocks, count), _BATCH // (each * across)
                        sent_bytes, rate = each * tokens * hidden * ELEMENT_BYTES, _link_rate(fits, gpu, devices)
                        step_s = _step_s(ends, measured, across, along, steps, made, sent_bytes, rate)
                        stages = _stages(ends, across, along, devices)
                        options.append(Option(stages, each * across, steps, step_s))
            if len(options) > 1:
                name = f"{model} on {devices} {gpu}"
                yield Choice("Sailor", gpu, name, made, cluster, tuple(options))


def _layer_seconds(part: pd.DataFrame, blocks: int) -> dict[tuple[int, int], NDArray[np.float64]]:
    """Seconds of forward and backward of each layer, shape (L, 2), by tensor-parallel degree and micro-batch."""
    found = {}
    for (tp, size), rows in part.groupby(["tp", "micro_batch"]):
        layers = np.full((blocks + 2, 2), np.nan)
        for row in rows.sort_values("layer").itertuples():
            layers[int(row.layer) : int(row.layer) + int(row.num_equal_layers)] = row.forward_s, row.backward_s
        layers[0] = np.nan_to_num(layers[0])  # what is under the clock's resolution
        if not np.isnan(layers).any():
            found[int(tp), int(size)] = layers
    return found


def _step_s(
    ends: Sequence[tuple[int, int]],
    layers: NDArray[np.float64],
    across: int,
    along: int,
    count: int,
    model: Model,
    sent_bytes: float,
    rate: float,
) -> float:
    """The simulated step of measured layers; gradients are summed over the links as they were measured."""
    times = []
    for n, (first, last) in enumerate(ends):
        forward, backward = layers[first : last + 1].sum(axis=0)
        gradients = sum(
            float(tensor.num_bytes) for tensor in model.tensors
            if tensor.role == "gradient" and first <= tensor.users[0] <= last
        )  # fmt: skip
        sync_s = 2 * (across - 1) / across * gradients / along / rate
        times.append(
            StageTimes(
                forward_s=forward, backward_s=backward, per_step_s=sync_s, synchronisation_s=sync_s,
                forward_send_s=sent_bytes / rate if n + 1 < len(ends) else 0.0,
                backward_send_s=sent_bytes / rate if n else 0.0, devices=across * along,
            )
        )  # fmt: skip
    return simulate(times, count).step_s


def _link_rate(fits: Mapping[str, Any], gpu: str, devices: int) -> float:
    """Bytes per second among devices of a host, of large messages: a group is as slow as any smaller one."""
    known = (float(fit[1]) for degree, fit in fits.get(gpu, {}).items() if int(degree) <= devices)
    return min(known, default=1e10)


def _one_host(gpu: str, devices: int) -> Cluster:
    """GPUs of one host by their data sheets, in single precision as they were profiled."""
    sheet = gpu_of(_SAILORS_GPUS[gpu])
    assert sheet is not None, "all are known"
    device = dataclasses.replace(sheet.device(), name=gpu, dispatch_s=0.0, step_s=0.0)
    link = Link(named_cluster("p3.16xlarge").links[0][0].latency_s, _LINKS.get(gpu, _PCIE_BYTES_PER_S))
    return Cluster.uniform(f"{devices} x {gpu}", ["host"], device, devices, link, link)


_JOBS, _LEAST_S, _MOST_S = 45, 1e-3, 3e-2
"""So many models are drawn for each GPU, of kernels that take so long there by the roofline; the shortest kernels are
but the launch of a kernel from Python."""
_MOST_CUTS = 12
"""So many cuts of a model are compared, those whose slowest stage is shortest by the roofline: others are far off."""
_CLOSE = 3, 1.1
"""So many cuts of a model are within so many times the best one by the roofline: what is plain needs no choice."""
_SPAN_BYTES = 2.0**20


def _kernels(folder: Folder) -> Iterator[Choice]:
    """Cuts of models into stages of one GPU each, whose layers are kernels that were measured on it (NeuSight)."""
    rows = _rooflines(pd.read_csv(folder.path / "neusight-kernels/kernels.csv"))
    rows = rows[(rows["roofline_s"] > _LEAST_S) & (rows["roofline_s"] < _MOST_S)]
    for number, (gpu, part) in enumerate(rows.groupby("gpu")):
        rng = np.random.default_rng(number)
        for n in range(_JOBS):
            yield _cut(str(gpu), n, part, rng)


def _rooflines(rows: pd.DataFrame) -> pd.DataFrame:
    """Kernels with their `work_s` and `traffic_s` by the data sheet, the longer of both, and which are products.

    A product is `batch` times (m, k) by (k, n), in single precision without tensor cores; all else goes over `batch`
    rows of length n.
    """
    sheets = {name: gpu_of(name.upper()) for name in rows["gpu"].unique()}
    rates, memories = (
        rows["gpu"].map({name: getattr(gpu, figure) for name, gpu in sheets.items()})
        for figure in ("vector_flop_per_s", "memory_bytes_per_s")
    )
    product, operands = rows["op"].isin(["linear", "bmm"]), rows["op"].map({"add": 3, "mul": 3}).fillna(2)
    flop = rows["batch"] * rows["n"] * np.where(product, 2 * rows["m"] * rows["k"], 1)
    ends = rows["m"] * rows["k"] + rows["k"] * rows["n"] + rows["m"] * rows["n"]
    work_s = flop / rates
    traffic_s = 4 * rows["batch"] * np.where(product, ends, operands * rows["n"]) / memories
    return rows.assign(product=product, work_s=work_s, traffic_s=traffic_s, roofline_s=np.maximum(work_s, traffic_s))


def _cut(gpu: str, number: int, rows: pd.DataFrame, rng: np.random.Generator) -> Choice:
    """A model of 6 to 12 layers of one or two kernels, and cuts of it into 2 to 4 stages, several of them close."""
    slowest_s: list[float] = []
    while len(slowest_s) < _CLOSE[0] or slowest_s[_CLOSE[0] - 1] > _CLOSE[1] * slowest_s[0]:
        layers = [rows.sample(int(rng.integers(1, 3)), random_state=rng) for _ in range(int(rng.integers(6, 13)))]
        stages, count = int(rng.integers(2, 5)), int(rng.choice([4, 8, 16, 32]))
        roofline_s = np.array([float(part["roofline_s"].sum()) for part in layers])
        cuts = itertools.combinations(range(1, len(layers)), stages - 1)
        every = sorted(cuts, key=lambda cut: max(_sums(roofline_s, cut)))
        slowest_s = [max(_sums(roofline_s, cut)) for cut in every]
    device = Device(gpu, 1e12, {"float32": 1.0}, 1.0, 1.0)
    link = Link(0.0, 1e15)
    cluster = Cluster.uniform(f"{stages} x {gpu}", ["host"], device, stages, link, link)
    last, made, tensors = 2 * len(layers) - 1, [], []
    for n, part in enumerate(layers):
        each = [
            Operator(
                "dot" if row.product else "elementwise", f"{row.op} {row.Index}", ((row.Index,),), ((row.Index,),),
                "float32", row.work_s, read_bytes=row.traffic_s,
            )
            for row in part.itertuples()
        ]  # fmt: skip
        back = Operators.of([_twice(one) for one in each])
        made.append(Layer(f"layer {n}", Operators.of(each), back, Operators.of([])))
        if n + 1 < len(layers):
            tensors.append(Tensor(_SPAN_BYTES, "activation", n, (n + 1,)))
            tensors.append(Tensor(_SPAN_BYTES, "activation", last - n - 1, (last - n,)))
    seconds = np.array([float(part["latency_s"].sum()) for part in layers])
    options = []
    for cut in every[:_MOST_CUTS]:
        times = [StageTimes(each_s, 2 * each_s) for each_s in _sums(seconds, cut)]
        spans = [(first, end - 1) for first, end in itertools.pairwise((0, *cut, len(layers)))]
        options.append(Option(_stages(spans, 1, 1, stages), 1, count, simulate(times, count).step_s))
    name = f"{len(layers)} layers on {stages} {gpu} ({number})"
    return Choice("NeuSight", gpu, name, Model(tuple(made), tuple(tensors)), cluster, tuple(options))


def _sums(seconds: NDArray[np.float64], cut: Sequence[int]) -> list[float]:
    """The seconds of each stage, of those of the layers."""
    return [float(each.sum()) for each in np.split(seconds, cut)]


def _with_ends(blocks: int, stages: int) -> list[tuple[int, int]]:
    """The layers of each stage, inclusive: equally many blocks, after the embedding and before the head."""
    spans = equal_layers(blocks, stages)
    return [(first + (n > 0), last + 1 + (n == stages - 1)) for n, (first, last) in enumerate(spans)]
