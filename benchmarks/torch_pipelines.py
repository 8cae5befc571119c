"""PyTorch's own pipelining runs our uneven split beside the even one, on processes with a share of a core each.

    python benchmarks/torch_pipelines.py [--steps N] [--micro-batches N] [--share SHARE] [--json FILE]

The model is a small transformer with a large head, one layer for the embedding and one for the head. Each layer is
timed in processes with such a share; from these seconds the exhaustive slicer cuts the stages, and both splits are
simulated. Then `torch.distributed.pipelining` (gloo, loopback) runs both by our 1F1B schedule, a step each in turns.
The gradients of both are compared with those of the whole model in one process. It needs PyTorch (the extra `exports`)
and root, for the quotas. Exit status 1 if an aim is missed.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from tqdm import tqdm

from alpa_dejavu._util import units
from alpa_dejavu.problem import Objective, SlicingProblem, StageChoice
from alpa_dejavu.schedules import named_schedule, write_schedule
from alpa_dejavu.simulation import StageTimes, simulate
from alpa_dejavu.slicing import slicer
from alpa_dejavu.slicing.makespan import Makespan
from harness import Figure, Results, Table, at_least, options
from real_hosts import quotas
from torch_runtime import LayerSeconds, Processes, Sizes, Split, started

SIZES = Sizes(blocks=12, width=192, heads=4, words=12544, samples=2, tokens=32)
"""GPT-2 small's proportions: twelve blocks, and a head with as many parameters as 5.4 of them."""
STAGES, WARM_UP, REPEATS = 4, 2, 30
FASTER, OFF, APART = 1.15, 0.10, 1e-5
Layers = list[list[int]]


@final
@dataclasses.dataclass(frozen=True)
class Balanced(Objective):
    """The simulated step; of cuts that make it equally long, the one whose stages are most alike comes first, as what
    delays a stage for a moment is then made up for most easily.
    """

    makespan: Makespan

    def total_s(self, problem: SlicingProblem, stages: tuple[StageChoice, ...]) -> float:
        """Returns the seconds of the step, and a thousandth of them at most for what isn't balanced."""
        each = np.array([problem.costs_s[stage.entry] for stage in stages])
        return self.makespan.total_s(problem, stages) * (1 + 1e-3 * float(np.square(each / each.sum()).sum()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs both splits; exit status 1 if a figure is missed."""
    parser = options(__doc__)
    parser.add_argument("--steps", type=at_least(2), default=20, help="of each split (default: %(default)s)")
    parser.add_argument("--micro-batches", type=at_least(1), default=16, help="of a step (default: %(default)s)")
    parser.add_argument("--share", type=float, default=0.45, help="of a core, for each process (default: %(default)s)")
    given = parser.parse_args(arguments)
    asked = {"steps": given.steps, "micro_batches": given.micro_batches, "share": given.share}
    results = Results(given.json, {**asked, "sizes": list(SIZES)})
    found = results.known("runs", "torch", _run, given.steps, given.micro_batches, given.share)
    columns = {
        "split": "{split}",
        "layers of each stage": "{layers}",
        "step": "{measured_s:seconds}",
        "simulated": "{simulated_s:seconds}",
        "off": lambda row: f"{row['simulated_s'] / row['measured_s'] - 1:+.1%}",
        "gradients off one process's": "{gradients_off:.1e}",
    }
    rows, ratios = found["rows"], found["ratios"]
    predicted = rows[0]["simulated_s"] / rows[1]["simulated_s"]
    measured = statistics.median(ratios)
    low, high = np.quantile(ratios, (0.05, 0.95))
    said = f"{measured:.3f} (90 % of the pairs of steps within {low:.3f} and {high:.3f})"
    apart = max(row["gradients_off"] for row in rows)
    figures = [
        Figure("uneven split", "times as fast as the even one", f"at least {FASTER}", said, measured >= FASTER),
        Figure("simulation", "of that ratio", f"within {OFF:.0%}", f"{predicted:.3f}, {predicted / measured - 1:+.1%}",
               abs(predicted / measured - 1) <= OFF),
        Figure("both splits", "gradients off one process's", f"at most {APART}", f"{apart:.1e}", apart <= APART),
    ]  # fmt: skip
    return results.shown(Table.of(rows, columns), f"PyTorch {found['torch']}; {found['layers']}", figures=figures)


def _run(steps: int, micro_batches: int, share: float) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory() as folder,
        quotas(STAGES) as limits,
        started(STAGES, SIZES, micro_batches) as processes,
    ):
        for device, pid in enumerate(processes.pids):
            limits.put(device, [pid])
        limits.limit([share] * STAGES)
        path = Path(folder) / "1f1b.csv"
        write_schedule(path, named_schedule("1f1b", STAGES, micro_batches))
        layers = _medians(processes.all("layer_seconds", REPEATS))
        transfer_s = max(processes.all("transfer_seconds", REPEATS))
        splits = {"even": _even(), "uneven": _uneven(layers, micro_batches)}
        expected = processes.one(0, "whole_gradients")
        off = {name: _checked(processes, name, Split(split, path), expected) for name, split in splits.items()}
        took: dict[str, list[float]] = {name: [] for name in splits}
        for number in tqdm(range(WARM_UP + steps), desc="steps in turns"):
            for name in sorted(splits, reverse=number % 2 == 1):
                seconds = processes.step_s(name)
                if number >= WARM_UP:
                    took[name].append(seconds)
    rows = [
        {
            "split": name,
            "layers": ", ".join(f"{each[0]}-{each[-1]}" if len(each) > 1 else f"{each[0]}" for each in split),
            "measured_s": statistics.median(took[name]),
            "simulated_s": _simulated_s(split, layers, transfer_s, micro_batches),
            "gradients_off": off[name],
        }
        for name, split in splits.items()
    ]
    ratios = [even / uneven for even, uneven in zip(took["even"], took["uneven"], strict=True)]
    whole = [one.forward_s + one.backward_s for one in layers]
    said = (
        f"a block takes {units.seconds(statistics.median(whole[1:-1]))} of a micro-batch, the head "
        f"{units.seconds(whole[-1])}, a transfer {units.seconds(transfer_s)}"
    )
    return {"rows": rows, "ratios": ratios, "torch": torch.__version__, "layers": said}


def _medians(found: Sequence[Sequence[LayerSeconds]]) -> list[LayerSeconds]:
    """The median of what processes say of each layer, which they have timed at the same time."""
    return [
        LayerSeconds(*(statistics.median(each) for each in zip(*of_layer, strict=True)))
        for of_layer in zip(*found, strict=True)
    ]


def _even() -> Layers:
    """As many layers in each stage."""
    return [list(map(int, each)) for each in np.array_split(np.arange(SIZES.layers), STAGES)]


def _uneven(layers: Sequence[LayerSeconds], micro_batches: int) -> Layers:
    """The stages of the exhaustive slicer, by the layers' seconds and the simulated step."""
    forward, whole = (_of_ranges([sum(one[:passes]) for one in layers])[:, :, None, None] for passes in (1, 2))
    objective = Balanced(Makespan(forward, sends="overlapped"))
    found = slicer("exhaustive").slice(SlicingProblem(whole, np.array([1]), STAGES, micro_batches, objective=objective))
    return [list(range(stage.first, stage.last + 1)) for stage in found.stages]


def _of_ranges(each: Sequence[float]) -> np.ndarray:
    """The sums of all layers i..j, shape (L, L); infinite where j comes before i."""
    ends = np.concatenate([[0.0], np.cumsum(each)])
    sums = ends[None, 1:] - ends[:-1, None]
    return np.where(np.triu(np.ones_like(sums)) > 0, sums, np.inf)


def _simulated_s(split: Layers, layers: Sequence[LayerSeconds], transfer_s: float, micro_batches: int) -> float:
    times = []
    for stage in split:
        own = [layers[number] for number in stage]
        forward_s, backward_s, update_s = (sum(one[n] for one in own) for n in range(3))
        times.append(StageTimes(forward_s, backward_s, update_s, forward_send_s=transfer_s, backward_send_s=transfer_s))
    return simulate(times, micro_batches, "1f1b", sends="overlapped").step_s


def _checked(processes: Processes, name: str, split: Split, expected: list[list[Any]]) -> float:
    """Prepares a split; how far its gradients are off the expected ones, as a share of their norms."""
    processes.all("prepare", name, split)
    by_stage: dict[int, Any] = {}
    for own in processes.all("gradients", name):
        by_stage |= own
    found = [layer for stage in sorted(by_stage) for layer in by_stage[stage]]
    return max(
        float(np.linalg.norm(one - other) / np.linalg.norm(other))
        for layer, wanted in zip(found, expected, strict=True)
        for one, other in zip(layer, wanted, strict=True)
    )


if __name__ == "__main__":
    raise SystemExit(main())
