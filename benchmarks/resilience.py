"""How much of a network may fail: three small models, their critical parts, and training for it.

    python benchmarks/resilience.py [--seeds N] [--masks N] [--json FILE]

A network of 64-32-10 and a convolutional one of 8 and 16 filters are trained on digits, a transformer of two blocks on
docstrings of Python's library. Each is trained from several seeds, plainly and for resilience: under removed neurons,
with averaged weights; the share that is removed was chosen of 0.05, 0.1 and 0.15 by a seed that isn't judged. All
accuracies are of held-out data. The neurons of hidden layers fail: those of the last layer and of embeddings don't.
Harmless parts are chosen by training data,
as many as cost half a point there. Exit status 1 if a figure is missed.

- Parts that are named harmless can be removed together with at most 1 point lost, where random ones of the same number
  lose at least 5.
- Trained for it, half the loss of accuracy at 10 % removed, and at most 1 point lost without faults, on 2 of 3 models.
- 1000 masks of the convolutional network take less than 2 minutes.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu"}

import jax
import numpy as np
import optax
from tqdm import tqdm

from _resilience_training import answers, bound_of_counts, mean_of, methods, outages
from alpa_dejavu.playground import Problem, problem
from alpa_dejavu.training.resilience import Parts, Resilience, cross_entropy, find_parts, resilience
from alpa_dejavu.training.resilience.activations import clipped
from alpa_dejavu.training.resilience.bit_map import bit_map
from alpa_dejavu.training.resilience.critical import chosen_parts, judged_without
from alpa_dejavu.training.resilience.data_faults import data_resilience
from alpa_dejavu.training.resilience.faults import Flipped, Noisy, Removed, Stuck, UnitFault
from alpa_dejavu.training.resilience.hardening import Drill, hardened
from harness import Figure, Results, Table, at_least, options, wrong_input_told

SHARES, TEN, BATCH, RATE, AVERAGED = (0.05, 0.1, 0.2, 0.3, 0.5), 0.1, 32, 3e-3, 0.2
DRILLED = (0.05, 0.1, 0.15)
MANY_MASKS, MOST_S = 1000, 120.0
OUTAGES = 5
"""Trainings with each outage, and as many without."""
SPARED = 0.005
"""How much accuracy on training data parts may cost together that are named harmless."""
FLIPPED = 1e-3
"""The share of weights of which one bit is flipped."""
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, how long it is trained, and which of its layers keep their neurons."""

    name: str
    steps: int
    spared: tuple[str, ...]
    judged: int
    """Held-out samples that are looked at, so that masks don't take long."""
    at_once: int = 1
    """How many harmless parts are found at once, by their harm beside those found before."""

    @functools.cached_property
    def problem(self) -> Problem:
        """The model and its data."""
        return problem(self.name)

    @property
    def held_out(self) -> tuple[Any, Any]:
        """The samples that accuracies are of."""
        inputs, targets = self.problem.held_out
        return inputs[: self.judged], targets[: self.judged]

    def model(self, params: Any, inputs: Any) -> Any:
        """The logits."""
        assert self.problem.logits is not None, "these problems have classes"
        return self.problem.logits(params, inputs)

    def parts(self) -> Parts:
        """The neurons of hidden layers."""
        return find_parts(self.problem.init(jax.random.PRNGKey(0)), but=self.spared)

    @functools.cache  # noqa: B019
    def trained(self, seed: int, drilled: float = 0.0) -> Any:
        """Parameters trained with a share of neurons removed in each step; 0: plainly."""
        drills = [Drill(Removed(), self.parts(), drilled)] if drilled else []
        return self.hardened(seed, drills, AVERAGED if drilled else 0.0)

    def hardened(self, seed: int, drills: Sequence[Drill], averaged: float) -> Any:
        """Parameters trained under faults, with weights averaged over a last share of the steps."""
        start = self.problem.init(jax.random.PRNGKey(seed))
        return hardened(
            self.model, cross_entropy, start, self.problem.train, optax.adam(RATE), steps=self.steps, batch=BATCH,
            drills=drills, averaged=averaged, seed=seed,
        )  # fmt: skip

    def curve(
        self, params: Any, masks: int, shares: Sequence[float], fault: str | UnitFault = "removed", **more: Any
    ) -> Resilience:
        """Accuracies with a fault in shares of the neurons, or of other parts."""
        model = more.pop("model", self.model)
        return resilience(model, params, self.held_out, {"": fault}, shares=shares, masks=masks,
                          **{"parts": self.parts(), **more})  # fmt: skip


CASES = (
    Case("digits-mlp", 3000, ("out",), 360),
    Case("digits-cnn", 3000, ("out",), 360),
    Case("text-gpt", 1000, ("out", "characters", "places"), 40, at_once=288),
)


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all; exit status 1 if a figure is missed."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=at_least(2), default=3, help="trained of each model (default: %(default)s)")
    parser.add_argument("--masks", type=at_least(2), default=50, help="of each point (default: %(default)s)")
    given = parser.parse_args(arguments)
    results = Results(given.json, {"seeds": given.seeds, "masks": given.masks})
    seeds, masks = range(1, given.seeds + 1), given.masks
    rows: dict[str, list[Row]] = {}
    speed = results.known("speed", "masks", _speed, CASES[1])
    for case in tqdm(CASES, "models"):
        share = results.known("drills", case.name, _drill, case, masks)["share"]
        for seed in seeds:
            row = results.known("rows", f"{case.name}, seed {seed}", _row, case, seed, share, masks)
            rows.setdefault(case.name, []).append(row)
        rows[case.name + "/more"] = [results.known("more", case.name, _more, case, masks)]
    bound = results.known("bound", "digits-mlp", _bound, CASES[0])["rows"]
    data = results.known("data", "digits-mlp", _data, CASES[0])["rows"]
    alone = [row for case in tqdm(CASES, "ways of training")
             for row in results.known("ways", case.name, _ways, case, results, seeds, masks)["rows"]]  # fmt: skip
    lost = results.known("outages", "all", lambda: {"rows": outages(range(1, OUTAGES + 1))})["rows"]
    tables = _tables(rows, results["drills"], bound, data)
    return results.shown(*tables, _ways_table(alone), _outages_table(lost), figures=_figures(rows, speed))


def _drill(case: Case, masks: int) -> Row:
    """The share that training removes: the best accuracy at 10 % removed that keeps all but a point without faults."""
    plain = case.curve(case.trained(0), masks, (TEN,)).base
    found = {}
    for share in DRILLED:
        curve = case.curve(case.trained(0, share), masks, (TEN,))
        found[share] = (curve.base >= plain - 0.01, curve.points[0].mean)
    return {"share": max(found, key=lambda share: found[share])}


def _row(case: Case, seed: int, drilled: float, masks: int) -> Row:
    plain, trained = case.trained(seed), case.trained(seed, drilled)
    before, after = (case.curve(params, masks, SHARES) for params in (plain, trained))
    return {"before": before.data(), "after": after.data(), "harmless": [_harmless(case, plain)]}


def _harmless(case: Case, params: Any) -> Row:
    """The harmless parts beside random ones of the same number, on held-out data.

    By training data parts are put in an order, and as many are taken as can go together for half a point there.
    """
    parts = case.parts()
    inputs, targets = case.problem.train
    some = (inputs[: 2 * case.judged], targets[: 2 * case.judged])
    find = functools.partial(chosen_parts, case.model, params, parts=parts, at_once=case.at_once)
    order = find(some, k=parts.count // 2, least=True).units
    sets = np.zeros((len(order) + 1, parts.count), bool)
    for count in range(1, len(sets)):
        sets[count:, order[count - 1]] = True
    found = judged_without(case.model, params, some, parts, sets)
    k = max(1, int(np.flatnonzero(found >= found[0] - SPARED)[-1]))
    alone = judged_without(case.model, params, case.held_out, parts, sets[[0, k]])
    most = find(some, k=k, judged=case.held_out)
    drawn = case.curve(params, 50, (k / parts.count,)).points[0]
    return {"k": k, "units": parts.count, "base": alone[0], "least": alone[1], "most": most.accuracy,
            "random": drawn.mean}  # fmt: skip


def _more(case: Case, masks: int) -> Row:
    """The tables of the first seed: bits by field, other faults, layer by layer, and clipped activations."""
    params = case.trained(1)
    maps = {
        dtype: bit_map(
            case.model, params, case.held_out, dtype, share=FLIPPED, masks=max(10, masks // 5), by_layer=False
        )
        for dtype in ("float32", "bfloat16")
    }
    bits = {dtype: one.harm[0].tolist() for dtype, one in maps.items()}
    fields = {dtype: one.exponents_share() for dtype, one in maps.items()}
    others = {}
    asked: Mapping[str, tuple[UnitFault, Any]] = {
        "neurons removed": (Removed(), case.parts()),
        "weights removed": (Removed(), "weights"), "weights noisy by half": (Noisy(0.5), "weights"),
        "activations removed": (Removed(), "activations"), "activations stuck at 1": (Stuck(1.0), "activations"),
        "a bit of int8 weights flipped": (Flipped(None, "int8"), "weights"),
    }  # fmt: skip
    for name, (fault, parts) in asked.items():
        point = case.curve(params, masks, (TEN,), fault, parts=parts).points[0]
        others[name] = [point.mean, point.low]
    layers = {p.group: p.mean for p in case.curve(params, masks, (0.3,), by_layer=True).points if p.group}
    limited = clipped(case.model, params, case.problem.train[0][:400])
    flips = {name: case.curve(params, masks, (FLIPPED,), Flipped(), parts="weights", model=model).points[0]
             for name, model in (("plain", case.model), ("clipped", limited))}  # fmt: skip
    return {"bits": bits, "fields": fields, "others": others, "layers": layers,
            "flips": {name: [p.mean, p.low, float(np.mean(p.not_finite))] for name, p in flips.items()}}  # fmt: skip


def _speed(case: Case) -> Row:
    params, begun = case.trained(1), time.perf_counter()
    case.curve(params, MANY_MASKS, (TEN,))
    return {"seconds": time.perf_counter() - begun}


def _bound(case: Case) -> Row:
    """The worst measured change of a logit when hidden neurons are removed, beside the bound by the weights."""
    params, (inputs, _) = case.trained(1), case.held_out
    kernels = [params["hidden"]["kernel"], params["out"]["kernel"]]
    values = np.asarray(jax.nn.relu(inputs.reshape(len(inputs), -1) @ kernels[0] + params["hidden"]["bias"]))
    deviation, draw, rows = float(values.max()), np.random.default_rng(0), []
    for count in (1, 2, 4, 8):
        sets = [draw.choice(values.shape[1], count, replace=False) for _ in range(2000)]
        worst = max(float(np.abs(values[:, one] @ np.asarray(kernels[1])[one]).max()) for one in sets)
        rows.append({"count": count, "worst": worst, "bound": bound_of_counts(kernels, [count], deviation)})
    return {"rows": rows}


def _data(case: Case) -> Row:
    def train(inputs: Any, targets: Any, key: Any) -> Any:
        start = case.problem.init(key)
        return hardened(case.model, cross_entropy, start, (inputs, targets), optax.adam(RATE), steps=600, batch=BATCH)

    found = data_resilience(case.model, train, case.problem.train, case.held_out, shares=(0.3,), masks=3)
    rows = [{"fault": p.fault, "share": p.share, "mean": p.mean, "low": float(p.judged.min())} for p in found.points]
    return {"rows": [{"fault": "none", "share": 0.0, "mean": found.base, "low": found.base}, *rows]}


def _ways(case: Case, results: Results, seeds: Sequence[int], masks: int) -> Row:
    """Each way of training for it by itself: accuracies without faults and with 10 % of the neurons removed."""
    weights = find_parts(case.problem.init(jax.random.PRNGKey(0)), "weights")
    share, rows = results["drills"][case.name]["share"], []
    for name, (drills, averaged) in methods(case.parts(), weights, share, AVERAGED).items():
        curves = [case.curve(case.hardened(seed, drills, averaged), masks, (TEN,)) for seed in seeds]
        found = [{"base": one.base, "mean": one.points[0].mean, "low": one.points[0].low} for one in curves]
        rows.append({"name": f"{case.name}, {name}", **{key: mean_of(found, key) for key in ("base", "mean", "low")}})
    return {"rows": rows}


def _mean(rows: Sequence[Row], which: str, share: float | None = None, key: str = "mean") -> float:
    """The mean over seeds of a curve's base, or of a point."""
    if share is None:
        return float(np.mean([row[which]["base"] for row in rows]))
    return float(np.mean([p[key] for row in rows for p in row[which]["points"] if p["share"] == share]))


def _tables(rows: Mapping[str, list[Row]], drills: Any, bound: Any, data: Any) -> list[Table | str]:
    names = [case.name for case in CASES]
    curves = [
        {"name": f"{name}, {label}", "base": _mean(rows[name], which),
         "points": {f"{share:g}": f"{_mean(rows[name], which, share):.3f} "
                    f"({_mean(rows[name], which, share, 'low'):.3f})" for share in SHARES}}
        for name in names for which, label in (("before", "plain"), ("after", f"{drills[name]['share']:g} removed"))
    ]  # fmt: skip
    harmless = [
        {"name": name, **{key: float(np.mean([row["harmless"][0][key] for row in rows[name]]))
                          for key in ("k", "units", "base", "least", "random", "most")}}
        for name in names
    ]  # fmt: skip
    more = {name: rows[name + "/more"][0] for name in names}
    others = [{"name": fault, **{name: f"{mean:.3f} ({low:.3f})" for name, (mean, low) in (
        (name, more[name]["others"][fault]) for name in names)}} for fault in more[names[0]]["others"]]  # fmt: skip
    flips = [{"name": f"{name}, {label}", "mean": mean, "low": low, "nan": nan}
             for name in names for label, (mean, low, nan) in more[name]["flips"].items()]  # fmt: skip
    fields = [{"name": name, **more[name]["fields"]} for name in names]
    layers = [{"name": f"{name}, {group}", "mean": mean} for name in names
              for group, mean in more[name]["layers"].items()]  # fmt: skip
    by_name = {name: f"{{{name}}}" for name in names}
    three = {"accuracy": "{mean:.3f}", "5th percentile": "{low:.3f}"}
    return [
        Table.of(curves, {"model, trained": "{name}", "none": "{base:.3f}"}
                 | {f"{share:.0%}": f"{{points[{share:g}]}}" for share in SHARES},
                 "Accuracy with a share of hidden neurons removed: mean (5th percentile)"),
        Table.of(harmless, {"model": "{name}", "removed": "{k:.0f} of {units:.0f}", "none removed": "{base:.3f}",
                            "named harmless": "{least:.3f}", "random": "{random:.3f}", "named critical": "{most:.3f}"},
                 "Accuracy without parts that are named"),
        Table.of(others, {"10 % of": "{name}"} | by_name, "Accuracy of plain models: mean (5th percentile)"),
        Table.of(layers, {"30 % removed of": "{name}", "accuracy": "{mean:.3f}"}, "Layer by layer"),
        Table.of(fields, {"model": "{name}", "float32": "{float32:.1%}", "bfloat16": "{bfloat16:.1%}"},
                 "Share of the harm of flipped bits that the exponent's have"),
        Table.of(flips, {"a bit of 0.1 % of weights": "{name}"} | three | {"outputs not finite": "{nan:.1%}"},
                 "Flipped bits of float32, with activations clipped and not"),
        Table.of(bound, {"neurons removed": "{count}", "largest change of a logit": "{worst:.1f}",
                         "bound": "{bound:.1f}"}, "The bound of When Neurons Fail, digits-mlp"),
        Table.of(data, {"samples": "{fault}", "share": "{share:.0%}", "accuracy": "{mean:.3f}", "worst": "{low:.3f}"},
                 "Training data, digits-mlp"),
    ]  # fmt: skip


def _ways_table(rows: Sequence[Row]) -> Table:
    return Table.of(rows, {"trained with": "{name}", "no fault": "{base:.3f}", "10 % of neurons removed": "{mean:.3f}",
                           "5th percentile": "{low:.3f}"}, "Each way of training for it by itself")  # fmt: skip


def _outages_table(rows: Sequence[Row]) -> Table:
    return Table.of(answers(rows), {"no answer of": "{name}", "worst loss meanwhile, more by": "{worst}",
                                    "loss at the end, more by": "{end}", "steps behind": "{behind}"},
                    "60 of 240 steps without an answer, against the same training with all")  # fmt: skip


def _figures(rows: Mapping[str, list[Row]], speed: Row) -> list[Figure]:
    figures, held = [], 0
    for case in CASES:
        each = rows[case.name]
        lost = {which: _mean(each, which) - _mean(each, which, TEN) for which in ("before", "after")}
        cost = _mean(each, "before") - _mean(each, "after")
        met = lost["after"] <= lost["before"] / 2 and cost <= 0.01
        held += met
        said = f"{100 * lost['after']:.1f} of {100 * lost['before']:.1f} points, {100 * cost:.1f} without faults"
        figures.append(Figure(case.name, "trained for it, points lost", "at most half, at most 1", said, met))
    figures.append(Figure("models", "trained for it", "at least 2 of 3", f"{held} of 3", held >= 2))
    for case in CASES:
        found = [row["harmless"][0] for row in rows[case.name]]
        least, drawn = (100 * float(np.mean([one["base"] - one[key] for one in found])) for key in ("least", "random"))
        met = least <= 1 and drawn >= 5
        figures.append(Figure(case.name, "points lost without harmless parts, and random ones", "at most 1, at least 5",
                              f"{least:.1f}, {drawn:.1f}", met))  # fmt: skip
    seconds = speed["seconds"]
    figures.append(Figure("digits-cnn", f"seconds of {MANY_MASKS} masks", f"less than {MOST_S:g}", f"{seconds:.0f}",
                          seconds < MOST_S))  # fmt: skip
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
