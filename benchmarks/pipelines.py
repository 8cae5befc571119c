"""One pipeline beside several synchronous data-parallel ones, on unlike hosts and on the clusters of Sailor's plans.

    python benchmarks/pipelines.py [--profiles ../shared/data/amp] [--sailor ../shared/data] [--json OUT]

`--profiles`: AMP's case of unlike hosts (GPT-2 on 12 V100 and 4 T4, with AMP's times of layers) with several batches,
and links of 10 and of 100 Gb/s between hosts. `--sailor`: on the clusters of GH200 on which Sailor's plans were
measured, what our search chooses by profiles of layers, beside those plans. Nothing is run here: only the plans of
Sailor have a measured step, all others are predicted.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from _strategy_cases import Case, ProfiledLayers, cases, model_of, without_starts
from alpa_dejavu.planning.strategies import DataParallelPipelines, Dejavu
from alpa_dejavu.planning.strategies.stages import Pipeline
from alpa_dejavu.problem import Cluster, Link
from harness import Results, Table, options, wrong_input_told
from trials._folder import Folder
from trials._sailor_chosen import beside_measured

BATCHES = (32, 128, 512)
RATES_GBIT = (10, 100)


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Compares on each cluster; returns 2 where an input is wrong, with what and where on stderr."""
    parser = options(__doc__)
    parser.add_argument("--profiles", type=Path, help="the folder with AMP's forward times of layers")
    parser.add_argument("--sailor", type=Path, metavar="DATA", help="the folder whose part sailor has the plans")
    given = parser.parse_args(arguments)
    if given.profiles is None and given.sailor is None:
        raise ValueError("--profiles and --sailor are missing, but one must be given; give ../shared/data/amp")
    result = Results(given.json)
    shown: list[Table | str] = []
    if given.profiles is not None:
        result["unlike"] = list(_unlike(given.profiles))
        shown.append(Table.of(result["unlike"], UNLIKE, f"GPT-2 on {_case().cluster.name}"))
    if given.sailor is not None:
        result["sailor"] = beside_measured(Folder(given.sailor))
        shown += _sailors(result["sailor"])
    return result.shown(*shown)


def _case() -> Case:
    (found,) = (case for case in cases() if case.name == "unlike hosts")
    return found


def _unlike(profiles: Path) -> Iterator[dict[str, Any]]:
    """A row for each rate between hosts and each batch."""
    case, latency = _case(), ProfiledLayers.of(profiles)
    model = model_of(case.layers, case.model_name, profiled=True)
    asked = [(rate, batch) for rate in RATES_GBIT for batch in BATCHES]
    for rate, batch in tqdm(asked, desc="unlike hosts", unit="case"):
        cluster = _with_rate(without_starts(case.cluster), rate * 1e9 / 8)
        one, several = (
            strategy.plan(model, cluster, batch, latency=latency) for strategy in (Dejavu(), DataParallelPipelines())
        )
        yield {
            "rate_gbit": rate,
            "batch": batch,
            "one_s": one.step_s,
            "several_s": several.step_s,
            "gain": one.step_s / several.step_s,
            "pipelines": [_described(pipeline, cluster) for pipeline in several.pipelines],
            "computing_s": list(several.computing_s),
            "seconds": several.seconds,
        }


def _with_rate(cluster: Cluster, bytes_per_s: float) -> Cluster:
    """The cluster with links of this rate between its hosts."""
    links = tuple(
        tuple(link if a == b else Link(link.latency_s, bytes_per_s) for b, link in enumerate(row))
        for a, row in enumerate(cluster.links)
    )
    return dataclasses.replace(cluster, links=links)


def _described(pipeline: Pipeline, cluster: Cluster) -> dict[str, Any]:
    hosts = dict.fromkeys(host for stage in pipeline.stages for host in stage.hosts)
    return {
        "hosts": [cluster.hosts[host].name for host in hosts],
        "micro_batch": pipeline.micro_batch,
        "num_micro_batches": pipeline.num_micro_batches,
        "stages": [
            {"layers": [stage.first, stage.last], "mesh": list(stage.config.shape), "remat": stage.config.remat}
            for stage in pipeline.stages
        ],
    }


def _shares(row: dict[str, Any]) -> str:
    """Hosts, stages and samples of each pipeline; those that are written alike once."""
    said: dict[str, int] = {}
    for one in row["pipelines"]:
        kinds = [name.split(".")[0] for name in one["hosts"]]
        hosts = " + ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        stages = f" in {len(one['stages'])} stages" if one["stages"][1:] else ""
        text = f"{hosts}{stages}: {one['num_micro_batches'] * one['micro_batch']}"
        said[text] = said.get(text, 0) + 1
    return "; ".join(text if count == 1 else f"{count} x ({text})" for text, count in said.items())


UNLIKE = {
    "between hosts, batch": "{rate_gbit} Gb/s, {batch}",
    "one pipeline": "{one_s:seconds}",
    "pipelines": "{several_s:seconds}",
    "gain": "{gain:.2f}x",
    "samples of each pipeline": _shares,
}
SAILOR = {
    "model, nodes, batch": "{model}, {nodes}, {batch}",
    "ours": "{ours}",
    "predicted": "{predicted_s:seconds}",
    "fastest": "{fastest}",
    "measured": "{fastest_measured_s:seconds}",
    "it predicted": "{fastest_predicted_s:seconds}",
    "ratio": "{over_fastest:.3f}",
    "ours is": lambda row: "; ".join("{rank} of {of}".format(**one) for one in row["measured_as"]),
}


def _sailors(rows: Sequence[dict[str, Any]]) -> Iterator[Table | str]:
    """A table for each choice of degrees, and what of it was measured."""
    for degrees, said in ([4], "tensor parallelism of 4"), ([1, 2, 4], "any tensor parallelism"):
        ours = [row for row in rows if row["degrees"] == degrees]
        yield Table.of(ours, SAILOR, f"Sailor's clusters, 4 GH200 a node, {said}")
        mean = statistics.geometric_mean(row["over_fastest"] for row in ours)
        known = [one for row in ours for one in row["measured_as"]]
        rivals = [one for one in known if one["of"] > 1]
        yield (
            f"Ours over the fastest measured plan, both predicted, is {mean:.3f} as a geometric mean of {len(ours)} "
            f"clusters. A plan of our shape was measured on {len(known)} of them, on {len(rivals)} beside others; "
            f"of these {sum(one['rank'] == 1 for one in rivals)} are the fastest."
        )
    several = [row for row in rows if row["degrees"] == [4] and row["measured_plans"] > 1]
    agree = sum(row["first"] == row["fastest"] for row in several)
    yield (
        f"Of {len(several)} clusters with several measured plans, {agree} have the one that is predicted to be the "
        "fastest measured as the fastest."
    )


if __name__ == "__main__":
    raise SystemExit(main())
