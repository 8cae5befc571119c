"""Plans for other runtimes: for pairs of a model and a cluster the best plan that each can run, and what that costs.

    python benchmarks/exports.py [--pairs NAME ...] [--json FILE]

Each pair is planned once for any framework, under all schedules, and once for each target, by the same search and the
same prices. A step has 16 micro-batches of as many samples as there are devices, so that any division is possible. The
files that are written for a plan are checked by `target_rules.py`, which knows the targets by their documentation
alone, and are read again where there is a reader. Nothing is run: all seconds are predicted. What a restriction costs
is over the best plan that was found for the pair, by the search for any framework or for a target: the search isn't
exact in its shapes. Exit status 1 if a target refuses its files, or if the search for any framework misses a target's
plan by over 1 %.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any, final

from alpa_dejavu._util import units
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.exports import TARGETS, export
from alpa_dejavu.layers.models import Transformer, transformer_size
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.search.runtimes import RUNTIMES
from alpa_dejavu.problem import NoPlanError, Plan
from harness import Figure, Results, Table, options, wrong_input_told
from target_rules import RULES

Row = dict[str, Any]
MICRO_BATCHES = 16
LLAMA_1B = Transformer(2048, 16, 32, 128256, 2048, kv_heads=8, head_size=64, feed_forward=8192, tied=True)
LLAMA_3B = Transformer(3072, 28, 24, 128256, 2048, kv_heads=8, feed_forward=8192, tied=True)
LLAMA_8B = Transformer(4096, 32, 32, 128256, 4096, kv_heads=8, feed_forward=14336)
QWEN_1B = Transformer(1536, 28, 12, 151936, 2048, kv_heads=2, feed_forward=8960, biases="qkv", tied=True)
QWEN_7B = Transformer(3584, 28, 28, 152064, 4096, kv_heads=4, feed_forward=18944, biases="qkv")
MIXTRAL = Transformer(2048, 12, 16, 32000, 2048, kv_heads=8, feed_forward=3584, num_experts=8, experts_per_token=2)


@final
@dataclasses.dataclass(frozen=True)
class Pair:
    """A model, by name or by sizes, on so many hosts of a machine type."""

    model: str | Transformer
    machine: str
    hosts: int = 1


PAIRS = {
    "GPT-2 on 4 V100": Pair("gpt2-125m", "p3.8xlarge"),
    "GPT 350M on 2 x 4 T4": Pair("gpt-350m", "g4dn.12xlarge", 2),
    "GPT 1.3B on 8 V100": Pair("gpt-1.3b", "p3.16xlarge"),
    "GPT 1.3B on 2 x 4 V100": Pair("gpt-1.3b", "p3.8xlarge", 2),
    "GPT 6.7B on 8 A100": Pair("gpt-6.7b", "dgx-a100"),
    "Llama 1B on 4 V100": Pair(LLAMA_1B, "p3.8xlarge"),
    "Llama 1B on 2 x 4 V100": Pair(LLAMA_1B, "p3.8xlarge", 2),
    "Llama 3B on 8 V100": Pair(LLAMA_3B, "p3.16xlarge"),
    "Llama 8B on 8 A100": Pair(LLAMA_8B, "dgx-a100"),
    "Qwen 1.5B on 8 V100": Pair(QWEN_1B, "p3.16xlarge"),
    "Qwen 7B on 8 H100": Pair(QWEN_7B, "dgx-h100"),
    "A mixture of 8 experts on 2 x 4 V100": Pair(MIXTRAL, "p3.8xlarge", 2),
}


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Plans all pairs and prints the tables; exit status 1 if an aim is missed."""
    parser = options(__doc__)
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS), metavar="NAME", help="these alone")
    given = parser.parse_args(arguments)
    results = Results(given.json, {"micro_batches": MICRO_BATCHES}, simulated=True)
    rows = [results.known("rows", name, _pair, PAIRS[name]) | {"pair": name} for name in given.pairs]
    return results.shown(_table(rows), *map(_plans, rows), figures=_figures(rows))


def _pair(pair: Pair) -> Row:
    """The free plan of a pair, and that of each target."""
    sizes = pair.model if isinstance(pair.model, Transformer) else transformer_size(pair.model)
    assert sizes is not None, "all of them are transformers"
    cluster = named_cluster(pair.machine, pair.hosts)
    batch = MICRO_BATCHES * cluster.num_devices
    free = plan_model(sizes.text, cluster, 1, batch, MICRO_BATCHES, schedule="auto").plan
    targets: dict[str, Row] = {}
    for name in RUNTIMES:
        try:
            plan = plan_model(
                sizes.text, cluster, 1, batch, MICRO_BATCHES, runs_on=name, runtime="alpa", free=free
            ).plan  # fmt: skip
        except NoPlanError as error:
            targets[name] = {"error": str(error)}
            continue
        targets[name] = {"step_s": plan.step_s, "said": _said(plan), "refused": _refused(name, plan, sizes)}
    return {"free": {"step_s": free.step_s, "said": _said(free)}, "targets": targets}


def _refused(name: str, plan: Plan, sizes: Transformer) -> str:
    """Why a target's rules refuse the files of a plan, or what another reading of them has for it; empty: nothing."""
    target = TARGETS[name]
    try:
        RULES[name](target.writer.write(plan, sizes), plan)
        with tempfile.TemporaryDirectory() as folder:
            paths = export(plan, name, folder, model=sizes)
            if target.reader is not None:
                return _read_again(name, plan, sizes, paths)
    except (AssertionError, ValueError) as error:
        return str(error) or type(error).__name__
    return ""


def _read_again(name: str, plan: Plan, sizes: Transformer, paths: Sequence[pathlib.Path]) -> str:
    target = TARGETS[name]
    assert target.reader is not None, "it was asked for"
    path = next(path for suffix in (".sh", ".json", ".py", ".yml") for path in paths if path.suffix == suffix)
    asked = {"hosts": len(plan.devices_of_hosts)} if "hosts" in target.asks else {}
    outline = target.reader(path, plan.num_devices, sizes, **asked).outline
    cuts = [stage.layers for stage in plan.stages]
    return "" if list(outline.layers) == cuts else f"it is read again as {outline.layers}, not {cuts}"


def _said(plan: Plan) -> str:
    """The schedule and the stages of a plan in a few words, the layers of neighbours on equal meshes together."""
    runs = itertools.groupby(plan.stages, key=lambda stage: "x".join(map(str, stage.logical_mesh)))
    meshes = [f"{'-'.join(str(stage.num_layers) for stage in run)} on {mesh}" for mesh, run in runs]
    remat = sum(stage.remat == "layer" for stage in plan.stages)
    zero = sorted({stage.zero for stage in plan.stages})
    return f"{plan.schedule}; {', '.join(meshes)}; remat in {remat}; ZeRO {'/'.join(map(str, zero))}"


def _table(rows: Sequence[Row]) -> Table:
    def cost(row: Row, found: Row) -> str:
        if "error" in found:
            return "no plan"
        return f"{found['step_s'] / _best_s(row) - 1:.1%}" + (" refused" if found["refused"] else "")

    columns: dict[str, Any] = {
        "pair": "{pair}",
        "best step": lambda row: units.seconds(_best_s(row)),
        "any framework": lambda row: f"{row['free']['step_s'] / _best_s(row) - 1:.1%}",
    }
    columns |= {name: lambda row, name=name: cost(row, row["targets"][name]) for name in RUNTIMES}
    return Table.of(rows, columns, "How much longer the step of a target's best plan takes than the best plan's")


def _best_s(row: Row) -> float:
    found = [one["step_s"] for one in row["targets"].values() if "error" not in one]
    return float(min([row["free"]["step_s"], *found]))


def _plans(row: Row) -> Table:
    plans = {"free": row["free"], **{name: found for name, found in row["targets"].items() if "error" not in found}}
    lines = [(name, units.seconds(found["step_s"]), found["said"]) for name, found in plans.items()]
    return Table(("for", "step", "plan"), tuple(lines), row["pair"])


def _figures(rows: Sequence[Row]) -> list[Figure]:
    found = [target for row in rows for target in row["targets"].values()]
    accepted = [one for one in found if "error" not in one and not one["refused"]]
    missed = max(row["free"]["step_s"] / _best_s(row) - 1 for row in rows)
    return [
        Figure(
            "exports", f"plans that the targets' rules accept, of {len(found)}", str(len(found)), str(len(accepted)),
            len(accepted) == len(found),
        ),
        Figure("exports", "what the search for any framework misses", "at most 1 %", f"{missed:.2%}", missed <= 0.01),
    ]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
