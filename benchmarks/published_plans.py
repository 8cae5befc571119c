"""Alpa's published best plans beside ours, by the same predictions.

    python benchmarks/published_plans.py BENCHMARK_DIR [--json FILE] [--only NAME ...]

BENCHMARK_DIR is the folder benchmark/alpa of Alpa 0.2.3, whose suites hold the plans that Alpa's search found on AWS
p3.16xlarge. For each: the seconds of a step that we predict for it, for our plan with its micro-batches and its remat,
and for our plan with all of our own; its rank among all plans that we proposed, and its regret (its step over that of
our plan, less 1). Nothing here was run on a GPU: both sides are predictions of one model. All published plans did fit
into memory: where we say no, our estimate is too high.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from alpa_dejavu import layers, sharding
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning import GivenStage, estimate, plan_model
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.problem import Cluster, MeshConfig, NoPlanError, Run, Submesh
from harness import Results, Table, options

MACHINE = "p3.16xlarge"
SUITES = (
    ("gpt", "suite_auto_gpt", "perf_test_suite"),
    ("moe", "suite_auto_moe", "perf_test_suite"),
    ("wresnet", "suite_wresnet", "perf_test_auto_suite"),
)
SIZES = {
    "gpt": ("350m", "760m", "1.3b", "2.6b", "6.7b", "15b", "39b"),
    "moe": ("380m", "690m", "1.3b", "2.4b", "10b", "27b", "70b"),
    "wresnet": ("250m", "500m", "1b", "2b", "4b", "6.8b", "13b"),
}
"""The sizes of the suites' cases, in their order: for 1, 2, 4 ... 64 GPUs."""


@dataclasses.dataclass(frozen=True)
class Published:
    """A plan of Alpa's suites."""

    model: str
    gpus: int
    batch: int
    micro_batches: int
    remat: str
    stages: dict[int, tuple[GivenStage, ...]]
    """By the number of layers that the model is cut into."""

    @property
    def blocks(self) -> int:
        """As many layers as blocks."""
        return max(self.stages)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares every plan; exit status 1 if one couldn't be."""
    parser = options(__doc__)
    parser.add_argument("suites", type=Path, help="the folder benchmark/alpa of Alpa's source at v0.2.3")
    parser.add_argument("--only", nargs="+", help="only these models, such as gpt-39b")
    given = parser.parse_args(arguments)
    if not (given.suites / "suite_auto_gpt.py").is_file():
        parser.error(f"{given.suites} has no suite_auto_gpt.py; give the folder benchmark/alpa of Alpa v0.2.3")
    sys.path.insert(0, str(given.suites.resolve()))
    published = [case for case in _published() if not given.only or case.model in given.only]
    rows = [_compare(case) for case in tqdm(published, unit="plan")]
    Results(given.json, machine=MACHINE, plans=rows).shown(Table.of(rows, COLUMNS))
    return 0 if all("error" not in row for row in rows) else 1


def _published() -> Iterator[Published]:
    import importlib

    for family, module, name in SUITES:
        suite: dict[int, Any] = getattr(importlib.import_module(module), name)
        for size, (gpus, (case,)) in zip(SIZES[family], suite.items(), strict=True):
            given = case.parallel_args
            # Alpa's transformers were rematerialised by the block, however many blocks a layer has. Cut by the block
            # our layers have that remat; cut as Alpa's were they have its stages' boundaries exactly.
            blocks = given.num_auto_layers if family == "wresnet" else case.model_config.num_layers
            stages = {n: _stages(given, n // given.num_auto_layers) for n in {given.num_auto_layers, blocks}}
            remat = "layer" if given.use_remat else "none"
            yield Published(f"{family}-{size}", gpus, case.batch_size, case.num_micro_batches, remat, stages)


def _stages(given: Any, each: int) -> tuple[GivenStage, ...]:
    """The stages, `each` of our layers in one of Alpa's."""
    return tuple(
        GivenStage(each * min(ids), each * max(ids) + each - 1, Submesh(*shape), _config(logical, options, given))
        for ids, shape, logical, options in zip(
            given.forward_stage_layer_ids,
            given.submesh_physical_shapes,
            given.submesh_logical_shapes,
            given.submesh_autosharding_option_dicts,
            strict=True,
        )
    )


def _config(logical: tuple[int, int], options: dict[str, Any], given: Any) -> MeshConfig:
    """Alpa's config as ours: where no batch dimension is forced, the sharding engine is as free as Alpa's pass was."""
    across, along = logical
    zero = 2 if given.prefer_reduce_scatter and across * along > 1 else 0
    return MeshConfig((across, along), across, along, dict(options), "layer" if given.use_remat else "none", zero)


def _compare(case: Published) -> dict[str, Any]:
    hosts = max(case.gpus // 8, 1)
    cluster = named_cluster(MACHINE, hosts, min(case.gpus, 8))
    row: dict[str, Any] = {"model": case.model, "gpus": case.gpus, "micro_batches": case.micro_batches}
    settings: dict[str, Any] = {"batch": case.batch, "micro_batches": case.micro_batches, "layers": case.blocks}
    try:
        traced = layers.trace(case.model, batch=case.batch // case.micro_batches)
        cuts = [_published_plan(case, traced, number, cluster) for number in case.stages]
        same = plan_model(case.model, cluster, **settings, remat=(case.remat,), calibration="none")
        free = plan_model(case.model, cluster, batch=case.batch, calibration="none")
    except (NoPlanError, ValueError) as error:
        return row | {"error": str(error)}
    their_s = min(planned.plan.step_s for planned in cuts)
    faster = [same.plan.step_s, *(other.plan.step_s for other in same.runners_up)]
    return row | {
        "published_s": their_s,
        "published_fits": any(map(_fits, cuts)),
        "published_memory_share": min(map(_memory_share, cuts)),
        "ours_same_micro_batches_s": same.plan.step_s,
        "ours_s": free.plan.step_s,
        "ours_micro_batches": free.plan.num_micro_batches,
        "ours_fits": _fits(free) and _fits(same),
        "rank": 1 + sum(step < their_s * (1 - 1e-9) for step in faster),
        "ranked_among": len(faster) + 1,
        "regret_same_micro_batches": their_s / same.plan.step_s - 1,
        "regret": their_s / free.plan.step_s - 1,
    }


def _published_plan(case: Published, traced: layers.TracedStep, num_layers: int, cluster: Cluster) -> PlanningResult:
    model = sharding.model_of_step(traced, num_layers)
    return estimate(
        model,
        cluster,
        Run(case.micro_batches),
        case.stages[num_layers],
        name=case.model,
        batch=case.batch,
        calibration="none",
    )


def _memory_share(planned: PlanningResult) -> float:
    """The fullest stage's memory over its limit."""
    return max(stage.memory_bytes / stage.memory_limit_bytes for stage in planned.plan.stages)


def _fits(planned: PlanningResult) -> bool:
    return _memory_share(planned) <= 1


COLUMNS = {
    "model": "{model}",
    "GPUs": "{gpus}",
    "published": "{published_s:seconds}",
    "its memory": "{published_memory_share:.0%}",
    "ours, same micro-batches and remat": "{ours_same_micro_batches_s:seconds} in {micro_batches} "
    "({regret_same_micro_batches:+.1%}, rank {rank} of {ranked_among})",
    "ours, all free": "{ours_s:seconds} in {ours_micro_batches} ({regret:+.1%})",
    "ours fits": lambda row: row["ours_fits"],
}


if __name__ == "__main__":
    raise SystemExit(main())
