"""Published rates of training beside those that are predicted for the published strategies; nothing is fitted to them.

    python benchmarks/published_rates.py [--only NAME ...] [--json FILE]

Each row is estimated as `alpa_dejavu.planning.estimate` does it for anybody, by the calibration that is taken by
default: the stages, tensor and data parallelism, batch and rematerialisation are the published ones. The 90 % interval
is that of the plan's confidence. Beside it is what data sheets alone say. No bundled calibration was fitted to a
published rate.

- Megatron-LM's table doesn't give micro-batches: the one of 1, 2, 4 and 8 samples is taken that is predicted to be the
  fastest. Its rates count the forward pass that is computed again, by the paper's formula. All its runs are reckoned
  as 1F1B.
- ResNet-50 is the one whose 3x3 convolutions have the strides (v1.5). Convolutions were never measured.

References:
    Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC 2021: table 1,
    equation 3.
    https://github.com/NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5/README.md (container
    21.03).
    https://github.com/alpa-projects/alpa, benchmark/alpa/README.md.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tqdm import tqdm

from alpa_dejavu import layers, sharding
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.layers.models._sizes import GPT, WideResNet
from alpa_dejavu.layers.models._transformer import transformer_step
from alpa_dejavu.layers.models._wresnet import wresnet_step
from alpa_dejavu.planning import GivenStage, PlanningResult, estimate
from alpa_dejavu.problem import MeshConfig, Run, Submesh
from harness import Figure, Results, Table, options

MEGATRON = (
    ("1.7B", 24, 2304, 24, 1, 1, 32, 512, 137),
    ("3.6B", 32, 3072, 30, 2, 1, 64, 512, 138),
    ("7.5B", 32, 4096, 36, 4, 1, 128, 512, 142),
    ("18.4B", 48, 6144, 40, 8, 1, 256, 1024, 135),
    ("39.1B", 64, 8192, 48, 8, 2, 512, 1536, 138),
    ("76.1B", 80, 10240, 60, 8, 4, 1024, 1792, 140),
    ("145.6B", 96, 12288, 80, 8, 8, 1536, 2304, 148),
    ("310.1B", 128, 16384, 96, 8, 16, 1920, 2160, 155),
    ("529.6B", 128, 20480, 105, 8, 35, 2520, 2520, 163),
    ("1008B", 160, 25600, 128, 8, 64, 3072, 3072, 163),
)
"""Parameters, heads, hidden size, layers, tensor and pipeline parallelism, GPUs, batch, TFLOP/s of a GPU; sequences of
2048 tokens, a vocabulary of 51200."""
RESNET = (
    ("dgx-a100", "TF32", 256, ((1, 938), (8, 7248))),
    ("dgx-a100", "mixed", 256, ((1, 2470), (8, 16621))),
    ("p3.16xlarge", "FP32", 128, ((1, 367), (8, 2855))),
    ("p3.16xlarge", "mixed", 256, ((1, 1200), (8, 8322))),
)
"""The machine type that has the GPUs of a DGX, precision, images on a GPU, and images/s by GPUs."""
MICRO_BATCHES = (1, 2, 4, 8)
INSIDE, WIDEST = 0.8, 0.35
"""The aims: at least so many of the published rates are inside their interval, and no interval is wider, in each
direction, than so much of the predicted rate."""


@dataclasses.dataclass(frozen=True)
class Published:
    """A published rate, of which `amount` is done in a step, and its strategy at each micro-batch that may have been
    taken, for one replica.
    """

    name: str
    machine: str
    gpus: int
    batch: int
    rate: float
    unit: str
    amount: float
    step: Any
    micro_batches: tuple[int, ...]
    num_layers: int
    pipeline: int = 1
    tensor: int = 1
    remat: str = "none"
    zero: int = 0

    @property
    def data(self) -> int:
        """Replicas."""
        return self.gpus // self.pipeline // self.tensor

    def estimated(self, micro_batch: int, calibration: str | None = None) -> PlanningResult:
        """The plan of the strategy, at one micro-batch of each replica, by the default calibration or another one."""
        traced = layers.trace(self.step, batch=micro_batch * self.data)
        model = sharding.model_of_step(traced, self.num_layers)
        host = named_cluster(self.machine).hosts[0]
        cluster = named_cluster(self.machine, max(self.gpus // host.num_devices, 1), min(self.gpus, host.num_devices))
        each = self.gpus // self.pipeline
        submesh = Submesh(max(each // host.num_devices, 1), min(each, host.num_devices))
        forced = {"force_batch_dim_to_mesh_dim": 0} if self.data > 1 else {}
        config = MeshConfig((self.data, self.tensor), self.data, self.tensor, forced, self.remat, self.zero)
        ends = [n * self.num_layers // self.pipeline for n in range(self.pipeline + 1)]
        stages = [GivenStage(a, b - 1, submesh, config) for a, b in itertools.pairwise(ends)]
        run = Run(self.batch // self.data // micro_batch)
        return estimate(model, cluster, run, stages, name=self.name, batch=self.batch, calibration=calibration)


def published() -> Iterator[Published]:
    """All that are compared."""
    for name, heads, hidden, blocks, tensor, pipeline, gpus, batch, rate in MEGATRON:
        size = GPT(hidden, blocks, heads, sequence=2048, gathers=True)
        further = 1 + size.sequence / (6 * hidden) + size.vocabulary / (16 * blocks * hidden)
        flop = 96 * batch * size.sequence * blocks * hidden**2 * further
        replicas = gpus // tensor // pipeline
        possible = tuple(each for each in MICRO_BATCHES if batch // replicas % each == 0)
        yield Published(
            f"Megatron-LM {name}", "dgx-a100", gpus, batch, rate, "TFLOP/s of a GPU", flop / gpus / 1e12,
            functools.partial(transformer_step, size), possible, blocks, pipeline, tensor, "layer",
        )  # fmt: skip
    for machine, precision, each, rates in RESNET:
        step = functools.partial(wresnet_step, WideResNet(64, 1, classes=1000, half=precision == "mixed"))
        gpu = {"dgx-a100": "A100", "p3.16xlarge": "V100"}[machine]
        for gpus, rate in rates:
            name, batch = f"ResNet-50 {precision} on {gpus} {gpu}", each * gpus
            yield Published(name, machine, gpus, batch, rate, "images/s", batch, step, (each,), 1)
    yield Published(
        "Alpa GPT-2.6B", "p3.16xlarge", 8, 32, 32 / 2.464, "samples/s", 32, "gpt-2.6b", (4,), 32, 2, 2, "layer", 2
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; exit status 1 if an aim is missed."""
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only those whose names begin so, such as Megatron")
    given = parser.parse_args(arguments)
    cases = [one for one in published() if not given.only or one.name.startswith(tuple(given.only))]
    results = Results(given.json, rates=[])
    for one in tqdm(cases, unit="rate"):
        results["rates"].append(compared(one))
        results.write()
    rows = results["rates"]
    return results.shown(Table.of(rows, COLUMNS), figures=list(figures(rows)))


def compared(one: Published) -> dict[str, Any]:
    """The predicted rate, at the micro-batch that is predicted to be the fastest, beside the published one."""
    started = time.perf_counter()
    plans = {each: one.estimated(each).plan for each in one.micro_batches}
    micro_batch, plan = min(plans.items(), key=lambda item: item[1].step_s)
    assert plan.confidence is not None, "estimates have an interval"
    short_s, long_s = plan.confidence.interval_s
    lower, upper, predicted = one.amount / long_s, one.amount / short_s, one.amount / plan.step_s
    return {
        "name": one.name,
        "unit": one.unit,
        "published": one.rate,
        "predicted": predicted,
        "off": predicted / one.rate - 1,
        "by_sheets": one.amount / one.estimated(micro_batch, "none").plan.step_s,
        "lower": lower,
        "upper": upper,
        "inside": lower <= one.rate <= upper,
        "width": (upper - lower) / 2 / predicted,
        "micro_batch": micro_batch,
        "calibration": "" if plan.priced_by is None else plan.priced_by.calibration,
        "spread_from": plan.confidence.spread_from,
        "took_s": time.perf_counter() - started,
    }


def figures(rows: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    """The aims, and how far they were met."""
    inside = sum(row["inside"] for row in rows)
    widest = max(rows, key=lambda row: float(row["width"]))
    yield Figure(
        "intervals", "published rates", f"at least {INSIDE:.0%} inside", f"{inside} of {len(rows)}",
        inside >= INSIDE * len(rows),
    )  # fmt: skip
    yield Figure(
        "intervals", "published rates", f"none wider than ±{WIDEST:.0%}", f"±{widest['width']:.0%}: {widest['name']}",
        widest["width"] <= WIDEST,
    )  # fmt: skip


COLUMNS = {
    "rate": "{name}",
    "unit": "{unit}",
    "published": "{published:.0f}",
    "predicted": "{predicted:.0f} ({off:+.0%})",
    "by data sheets": "{by_sheets:.0f}",
    "90 % interval": "{lower:.0f} to {upper:.0f} (±{width:.0%})",
    "inside": lambda row: row["inside"],
    "micro-batch": "{micro_batch}",
    "took": "{took_s:seconds}",
}


if __name__ == "__main__":
    raise SystemExit(main())
