"""Published steps of training with offload beside those that are predicted; nothing is fitted to them.

    python benchmarks/published_offload.py [--json FILE]

Each row is estimated as `alpa_dejavu.planning.estimate` does it for anybody, with the published strategy: ZeRO, the
shares that are offloaded, batch and rematerialisation. What was not published is said beside the row.

- Llama-2-7B on 4 A100: neither batch nor sequence were published, but what a step takes without offload, 0.5 s. The
  batch is the one of whole samples of 1024 tokens whose step is predicted nearest to that, without offload.
- Qwen-72B on 4 nodes: "step time about 10 s" against 0.2 s is that of the optimizer alone, since 0.2 s is too short for
  an iteration; how many GPUs a node has wasn't said: 8.
- 10B on one V100: batch 10 as in DeepSpeed's tutorial, sequences of 1024 tokens, and 40 TFLOP/s that count the forward
  pass that is computed again, 8 operations for each parameter and token. Whether the paper's run accumulates gradients
  over more micro-batches isn't known: such a row is shown, and not judged.
- The rate of CPU Adam on hosts with EPYC 7742 follows from a run that isn't among these: see `dgx-a100.json`.

References:
    DeepSpeed, ZenFlow: https://pytorch.org/blog/zenflow-stall-free-offloading-engine-for-llm-training (Llama-2-7B).
    https://github.com/deepspeedai/DeepSpeed, issue 6834 (Qwen-72B).
    https://www.deepspeed.ai/tutorials/zero-offload (10B).
    Ren et al., ZeRO-Offload: Democratizing Billion-Scale Model Training, USENIX ATC 2021 (10B; CPU Adam, table 4).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from tqdm import tqdm

from alpa_dejavu import layers, sharding
from alpa_dejavu._util import units
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.layers.models._sizes import GPT
from alpa_dejavu.layers.models._transformer import transformer_step
from alpa_dejavu.planning import GivenStage, PlanningResult, estimate
from alpa_dejavu.problem import NO_OFFLOAD, Cluster, MeshConfig, Offload, Run, StageOffload, Submesh
from harness import Figure, Results, Table, options

WITHIN = 1.5
"""The aim: the factor between published and predicted seconds."""
LLAMA_7B = GPT(4096, 32, 32, vocabulary=32000, gathers=True)
QWEN_72B = GPT(8192, 80, 64, vocabulary=152064, gathers=True)
GPT_10B = GPT(4096, 50, 32, gathers=True)
GRADIENTS_TOO = Offload(1.0, 1.0)
GIB = 2.0**30
CPU_ADAM_BYTES_PER_S = 0.43 * 256e9
"""A DGX-2's two Xeon Platinum 8168 with six channels of DDR4-2666 each, times what the table's median reaches."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A job of data-parallel devices under ZeRO, of so many samples on each device in a micro-batch."""

    size: GPT
    cluster: Cluster
    zero: int
    samples: int
    offload: Offload
    micro_batches: int = 1
    remat: str = "none"

    def estimated(self, offload: Offload | None = None) -> PlanningResult:
        """The plan of the job, or of the same with another offload."""
        gpus = self.cluster.num_devices
        traced = layers.trace(functools.partial(transformer_step, self.size), batch=self.samples * gpus)
        model = sharding.model_of_step(traced, self.size.num_blocks)
        submesh = Submesh(len(self.cluster.hosts), self.cluster.hosts[0].num_devices)
        forced = {"force_batch_dim_to_mesh_dim": 0} if gpus > 1 else {}
        shares = self.offload if offload is None else offload
        zero = self.zero if gpus > 1 else 0
        config = MeshConfig((gpus, 1), gpus, 1, forced, self.remat, zero, shares)
        stages = [GivenStage(0, model.num_layers - 1, submesh, config)]
        batch = self.samples * gpus * self.micro_batches
        return estimate(model, self.cluster, Run(self.micro_batches), stages, batch=batch, runtime="deepspeed")


def dgx_2() -> Cluster:
    """One V100 of a DGX-2, which has 32 GB; its host is reached as a p3.16xlarge's is, and its processors update as the
    paper's table says.
    """
    cluster = named_cluster("p3.16xlarge", 1, 1)
    (host,) = cluster.hosts
    assert host.memory is not None, "the file has it"
    device = dataclasses.replace(host.device, memory_bytes=0.9 * 32 * GIB)
    memory = dataclasses.replace(host.memory, num_bytes=0.9 * 1.5e12, bytes_per_s=CPU_ADAM_BYTES_PER_S)
    return dataclasses.replace(cluster, hosts=(dataclasses.replace(host, device=device, memory=memory),))


def rows() -> Iterator[dict[str, Any]]:
    """All that are compared."""
    four = named_cluster("dgx-a100", 1, 4)
    jobs = [Job(LLAMA_7B, four, 2, samples, GRADIENTS_TOO) for samples in (1, 2, 3, 4, 6, 8)]
    steps = {job: job.estimated(NO_OFFLOAD).plan.step_s for job in jobs}
    job = min(steps, key=lambda each: abs(steps[each] - 0.5))
    said = f"{4 * job.samples} samples, chosen by it; not judged"
    yield row("Llama-2-7B on 4 A100: a step without offload", 0.5, steps[job], said, False)
    there = job.estimated()
    yield row("Llama-2-7B on 4 A100: a step", 7.0, there.plan.step_s, "published: over 7 s")
    yield row("Llama-2-7B on 4 A100: the host's part", 4.0, offloaded(there).step_s, "published: over 4 s")
    nodes = Job(QWEN_72B, named_cluster("dgx-a100", 4), 3, 1, Offload(1.0, 1.0, 1.0))
    update_s = offloaded(nodes.estimated()).step_s
    yield row("Qwen-72B on 4 nodes of A100: the update", 10.0, update_s, "published: about 10 s")
    for count in (1, 51):
        one = Job(GPT_10B, dgx_2(), 0, 10, GRADIENTS_TOO, count, "layer")
        flop = 8 * 10e9 * one.size.sequence * one.samples * count
        step_s = one.estimated().plan.step_s
        said, judged = f"{units.flop_rate(flop / step_s)}, published: {units.flop_rate(40e12)}", count == 1
        name = "10B on one V100: a step" + ("" if judged else f" of {count} micro-batches")
        yield row(name, flop / 40e12, step_s, said if judged else f"{said}; not judged", judged)
    for billion, published in ((1, 0.22), (2, 0.51), (4, 1.03), (8, 2.41), (10, 2.57)):
        said = "a DGX-2, whose rate is the median of these five; not judged"
        yield row(f"CPU Adam, {billion}B parameters", published, 28e9 * billion / CPU_ADAM_BYTES_PER_S, said, False)


def offloaded(planned: PlanningResult) -> StageOffload:
    """What the plan's only stage offloads."""
    found = planned.plan.stages[0].offload
    assert found is not None, "it offloads"
    return found


def row(name: str, published_s: float, predicted_s: float, said: str, judged: bool = True) -> dict[str, Any]:
    """One published figure beside the predicted one."""
    return {
        "name": name,
        "published_s": published_s,
        "predicted_s": predicted_s,
        "ratio": predicted_s / published_s,
        "said": said,
        "judged": judged,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; exit status 1 if the aim is missed."""
    given = options(__doc__).parse_args(arguments)
    results = Results(given.json, steps=[])
    for one in tqdm(rows(), unit="row"):
        results["steps"].append(one)
        results.write()
    return results.shown(Table.of(results["steps"], COLUMNS), figures=list(figures(results["steps"])))


def figures(found: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    """The aim, and the rows that are farthest from it."""
    worst = max((one for one in found if one["judged"]), key=lambda one: max(one["ratio"], 1 / one["ratio"]))
    off = max(worst["ratio"], 1 / worst["ratio"])
    yield Figure(
        "offload", "published steps", f"within a factor of {WITHIN}", f"{off:.2f}: {worst['name']}", off <= WITHIN
    )


COLUMNS = {
    "step": "{name}",
    "published": "{published_s:seconds}",
    "predicted": "{predicted_s:seconds}",
    "ratio": "{ratio:.2f}",
    "beside": "{said}",
}


if __name__ == "__main__":
    raise SystemExit(main())
