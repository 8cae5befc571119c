"""How often plans are right that are said to be right with a probability: choices among measured plans.

    python benchmarks/confidence.py --data ../shared/data --json confidence.json

A choice is a job with plans that were all measured: GPTs by Megatron on A100 (vTrain), GPT-2 and a model of unlike
layers on four hosts (AMP), and pipelines of layers that Sailor measured on seven GPUs. The planner predicts them by
data sheets, chooses one, and says how probable it is that no other is more than 5 % faster. The measurements say if
that is so. Choices of some groups (GPUs, depths of models) are there to fit spreads on; the others judge them, in
thirds by the probability that was said. A file that is there is gone on from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from scipy import stats
from tqdm import tqdm

from _confidence_choices import Choice, choices
from alpa_dejavu.calibration import Prices
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.planning import GivenStages, PlanningTask, plan
from alpa_dejavu.planning.search.models.model_source import GivenModel
from alpa_dejavu.planning.task import Chooser, Found
from harness import Figure, Results, Table, options, wrong_input_told
from published._folder import Folder

FITTED = (
    "12 blocks", "A100-40", "GH-96", "RTX-3090", "V100-16", "a100-pcie-40gb", "p4", "v100-pcie-32gb",
)  # fmt: skip
"""The groups that spreads are fitted on: one of four depths of vTrain's, every second one of Sailor's GPUs and of
NeuSight's."""
NEARLY = 1.05
LEAST_CHOICES = 120


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Predicts all choices; returns 1 if a figure is missed."""
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of measurements")
    given = parser.parse_args(arguments)
    results = Results(given.json, resumed_by={"fitted": FITTED})
    rows = [
        results.known("choices", f"{one.source}: {one.name}", judged, one)
        for one in tqdm(list(choices(Folder(given.data))), unit="choice")
    ]
    fitted, held = ([row for row in rows if (row["group"] in FITTED) == on] for on in (True, False))
    tables = [_reliability(part, title) for part, title in ((held, "Judged"), (fitted, "Fitted on")) if part]
    return results.shown(*tables, _by_source(rows), figures=_figures(held))


@final
@dataclasses.dataclass(frozen=True)
class Offered(Chooser):
    """A chooser whose plans are those of a choice alone, the one of the shortest predicted step first."""

    choice: Choice

    def choose(self, task: PlanningTask, clock: Any) -> Found:
        """Returns all plans, each priced at its own micro-batches."""
        found: list[Any] = []
        for one in self.choice.options:
            source = GivenModel(with_micro_batch(self.choice.model, one.micro_batch), one.micro_batch, self.choice.name)
            of_plan = dataclasses.replace(task, source=source, micro_batches=(one.num_micro_batches,))
            found += GivenStages(one.stages).choose(of_plan, clock).candidates
        return Found(sorted(found, key=lambda candidate: candidate.step_s))


def task_of(choice: Choice) -> PlanningTask:
    """The task to choose one of the measured plans."""
    first = choice.options[0]
    return PlanningTask(
        source=GivenModel(choice.model, 1, choice.name),
        prices=Prices(choice.cluster, CostModels.named("analytic", "alpha-beta")),
        batch=first.micro_batch * first.num_micro_batches,
        layers=(choice.model.num_layers,),
        micro_batches=(1,),
        chooser=Offered(choice),
    )


def judged(choice: Choice) -> dict[str, Any]:
    """The probability that is said of the plan that is chosen, and whether that plan is nearly the best measured."""
    made = plan(task_of(choice)).plan
    assert made.confidence is not None, "every plan has one"
    best_s = min(one.measured_s for one in choice.options)
    (chosen_s,) = {one.measured_s for one in choice.options if _is(one, made)}
    return {
        "source": choice.source,
        "group": choice.group,
        "plans": len(choice.options),
        "said": made.confidence.probability,
        "right": bool(chosen_s <= NEARLY * best_s),
        "regret": chosen_s / best_s - 1,
        "predicted_s": made.step_s,
        "interval_s": made.confidence.interval_s,
        "measured_s": chosen_s,
    }


def _is(option: Any, made: Any) -> bool:
    """Whether a finished plan is this option."""
    stages = [(stage.layers, stage.submesh, stage.logical_mesh) for stage in made.stages]
    wanted = [((one.first, one.last), one.submesh, one.config.shape) for one in option.stages]
    return stages == wanted and made.num_micro_batches == option.num_micro_batches


def binomial(count: int, probability: float) -> tuple[float, float]:
    """The ends of the 90 % interval of the share of successes among so many tries.

    >>> binomial(100, 0.5)
    (0.42, 0.58)
    """
    low, high = stats.binom.interval(0.9, count, probability)
    return float(low) / count, float(high) / count


def thirds(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices in three parts by the probability that was said: what was said, what was seen, and the interval."""
    found = []
    parts = np.array_split(np.array(sorted(rows, key=lambda row: row["said"]), dtype=object), 3)
    for name, part in zip(("low", "middle", "high"), parts, strict=True):
        said, right = float(np.mean([row["said"] for row in part])), float(np.mean([row["right"] for row in part]))
        low, high = binomial(len(part), said)
        found.append({"third": name, "choices": len(part), "said": said, "right": right, "low": low, "high": high})
    return found


def brier(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """The Brier scores of what was said, and of saying each time the share that is right of all."""
    said, right = (np.array([float(row[name]) for row in rows]) for name in ("said", "right"))
    return float(((said - right) ** 2).mean()), float(right.mean() * (1 - right.mean()))


def _reliability(rows: Sequence[dict[str, Any]], title: str) -> Table:
    score, constant = brier(rows)
    columns = {
        "third": "{third}", "choices": "{choices}", "said": "{said:.0%}", "right": "{right:.0%}",
        "90 % interval": "{low:.0%} to {high:.0%}",
    }  # fmt: skip
    return Table.of(thirds(rows), columns, f"{title}: {len(rows)} choices, Brier {score:.3f}, constant {constant:.3f}")


def _by_source(rows: Sequence[dict[str, Any]]) -> Table:
    found = []
    for key in sorted({(row["source"], row["group"]) for row in rows}):
        part = [row for row in rows if (row["source"], row["group"]) == key]
        inside = [row["interval_s"][0] <= row["measured_s"] <= row["interval_s"][1] for row in part]
        mean = {name: float(np.mean([row[name] for row in part])) for name in ("plans", "said", "right")}
        regret = float(np.median([row["regret"] for row in part]))
        found.append({"set": ": ".join(key), "choices": len(part), **mean, "regret": regret, "inside": np.mean(inside)})
    columns = {
        "set": "{set}", "choices": "{choices}", "plans": "{plans:.1f}", "said": "{said:.0%}", "right": "{right:.0%}",
        "median regret": "{regret:.1%}", "steps inside": "{inside:.0%}",
    }  # fmt: skip
    return Table.of(found, columns, "By set and group")


def _figures(held: Sequence[dict[str, Any]]) -> list[Figure]:
    score, constant = brier(held)
    parts = thirds(held)
    return [
        Figure("choices", "judged", f"{LEAST_CHOICES} or more", str(len(held)), len(held) >= LEAST_CHOICES),
        *(
            Figure("said probabilities", f"{one['third']} third", f"{one['low']:.0%} to {one['high']:.0%} right",
                   f"{one['right']:.0%}", one["low"] <= one["right"] <= one["high"])
            for one in parts
        ),
        Figure("Brier score", "judged", f"below {constant:.3f}", f"{score:.3f}", score < constant),
    ]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
