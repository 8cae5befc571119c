"""Free plans for today's training jobs beside the configurations that are published for them, by the same predictions.

    python benchmarks/todays_training.py [--only JOB ...] [--json FILE]

Each job is planned by one command, from an empty cache, with everything free. Beside it stands the step that we predict
for the published configuration: degrees, micro-batch and rematerialisation as recipes of the runtime have them, or
where there is none for so many GPUs, as its rules would scale the nearest one. Nothing here was run on a GPU: both are
predictions of one model, and a configuration that doesn't fit by our count says so.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from tqdm import tqdm

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.planning.search.models.named_model import sized_transformer
from alpa_dejavu.plans.plan_file import read_plan
from alpa_dejavu.plans.stage_rows import parallelism_text
from alpa_dejavu.problem import MeshConfig, Plan, Run, Submesh
from harness import Results, Table, options
from test_planning_time import ROOT, environment, timed

LIMIT_S = 600.0


@final
@dataclasses.dataclass(frozen=True)
class Recipe:
    """A configuration as recipes spell it; `micro_batch` is of one replica, `chunks` are virtual stages of a device."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    experts: int = 1
    micro_batch: int = 1
    chunks: int = 1
    zero: int = 2
    remat: str = "selective"
    expert_tensor: int = 0

    @property
    def text(self) -> str:
        """The degrees that aren't 1."""
        degrees = {"tensor": self.tensor, "pipeline": self.pipeline, "context": self.context, "experts": self.experts}
        shown = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]
        virtual = [f"{self.chunks} chunks"] if self.chunks > 1 else []
        return ", ".join([*shown, *virtual, f"micro-batch {self.micro_batch}", f"recompute {self.remat}"])


@final
@dataclasses.dataclass(frozen=True)
class Job:
    """A training job of today, and the configuration that is published for it, or for its like."""

    model: str
    tokens: int
    machine: str
    hosts: int
    batch: int
    runtime: str
    recipe: Recipe

    @property
    def command(self) -> list[str]:
        """The words of the command line that plans it."""
        words = [self.model, self.tokens, self.machine, self.hosts, self.batch, self.runtime]
        names = "--model", "--sequence", "--cluster", "--hosts", "--batch", "--for"
        return ["plan", *(str(word) for pair in zip(names, words, strict=True) for word in pair)]


JOBS: Mapping[str, Job] = {
    "llama-3-8b, 8 H100": Job("llama-3-8b", 8192, "dgx-h100", 1, 128, "megatron", Recipe(context=2)),
    "llama-3-70b, 64 H100": Job("llama-3-70b", 8192, "dgx-h100", 8, 128, "megatron", Recipe(4, 4, 2, chunks=5)),
    "llama-3.1-405b, 512 H100": Job("llama-3.1-405b", 8192, "dgx-h100", 64, 512, "megatron", Recipe(8, 16)),
    "mixtral-8x7b, 64 H100": Job(
        "mixtral-8x7b", 4096, "dgx-h100", 8, 256, "megatron", Recipe(1, 4, 1, 8, chunks=8, expert_tensor=1)
    ),
    "deepseek-v3, 256 H800": Job(
        "deepseek-v3", 4096, "h800", 32, 2048, "megatron", Recipe(1, 16, 1, 16, remat="layer")
    ),
    "deepseek-v3, 8 gb200-nvl72": Job(
        "deepseek-v3", 4096, "gb200-nvl72", 8, 4608, "megatron", Recipe(1, 4, 1, 16, chunks=4)
    ),
    "qwen3-30b-a3b, 16 H100": Job("qwen3-30b-a3b", 4096, "dgx-h100", 2, 512, "megatron", Recipe(1, 2, 1, 8, chunks=2)),
    "gemma-2-9b, 8 L40S": Job("gemma-2-9b", 8192, "g6e.48xlarge", 1, 64, "torchtitan", Recipe(zero=3, remat="layer")),
    "llama-3.1-8b at 128k, 8 H100": Job(
        "llama-3.1-8b", 131072, "dgx-h100", 1, 8, "megatron", Recipe(1, 1, 8, remat="layer")
    ),
}
"""The jobs by name: model and cluster."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Plans the jobs and shows them beside the recipes; exit status 1 where one couldn't be planned."""
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB", help="only these")
    asked = parser.parse_args(arguments)
    results = Results(asked.json, {})
    for name in tqdm(asked.only, unit="job"):
        results.known("jobs", name, compared, JOBS[name])
    rows = [{"job": name, **row} for name, row in results["jobs"].items()]
    results.shown(Table.of(rows, COLUMNS))
    return int(any("error" in row for row in rows))


def compared(job: Job) -> dict[str, Any]:
    """The free plan of a job and the recipe's predicted step, with the ratio of the two."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        variables = environment() | {"ALPA_DEJAVU_CACHE": f"{folder}/cache", "PYTHONPATH": f"{ROOT}:{ROOT / 'patches'}"}
        words = [sys.executable, "-m", "alpa_dejavu", *job.command, "--json", str(path)]
        figures = timed(words, variables, Path(folder), LIMIT_S)
        if "error" in figures:
            return {"command": " ".join(job.command), **figures}
        free = read_plan(path)
    theirs = priced(job, free)
    fits = max(stage.memory_bytes / stage.memory_limit_bytes for stage in theirs.stages)
    return {
        "command": " ".join(job.command), **figures, "step_s": free.step_s, "plan": parallelism_text(free),
        "recipe": job.recipe.text, "recipe_s": theirs.step_s, "recipe_memory": fits,
        "faster": theirs.step_s / free.step_s - 1,
    }  # fmt: skip


def priced(job: Job, free: Plan) -> Plan:
    """The recipe's plan on the job's cluster, as the free plan's model is priced."""
    recipe, cluster = job.recipe, named_cluster(job.machine, job.hosts)
    data = cluster.num_devices // recipe.tensor // recipe.pipeline
    config = MeshConfig(
        (data, recipe.tensor), data, recipe.tensor, {"force_batch_dim_to_mesh_dim": 0}, recipe.remat,
        recipe.zero if data > 1 else 0, context_parallel=recipe.context, expert_parallel=recipe.experts,
        expert_tensor=recipe.expert_tensor,
    )  # fmt: skip
    samples = config.replicas * recipe.micro_batch
    source = sized_transformer(free.model, job.runtime, samples)
    assert source is not None, "the jobs are of transformers"
    chunks = recipe.chunks
    schedule = "1f1b" if chunks == 1 else "interleaved" if chunks == 2 else f"interleaved_{chunks}"
    parts, blocks = recipe.pipeline * chunks, source.size.num_blocks
    bounds = [round(n * blocks / parts) for n in range(parts + 1)]
    ends = [0, *(1 + bound for bound in bounds[1:-1]), source.size.num_layers]
    devices, host = cluster.num_devices // recipe.pipeline, cluster.hosts[0].num_devices
    submesh = Submesh(max(devices // host, 1), min(devices, host))
    stages = [GivenStage(first, last - 1, submesh, config) for first, last in itertools.pairwise(ends)]
    model = source.exact(source.size.num_layers, samples)
    run = Run(job.batch // samples, schedule)
    return estimate(model, cluster, run, stages, batch=job.batch, runtime=job.runtime).plan


COLUMNS = {
    "job": "{job}",
    "recipe": "{recipe}",
    "its step": "{recipe_s:seconds}",
    "its memory": "{recipe_memory:.0%}",
    "our plan": "{plan}",
    "our step": "{step_s:seconds}",
    "faster by": "{faster:+.1%}",
    "planned in": "{wall_s:seconds}",
}


if __name__ == "__main__":
    raise SystemExit(main())
