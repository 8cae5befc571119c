"""Whether steps side by side pay: OptEx next to other uses of as many gradients.

    python benchmarks/optex.py [--problems NAME ...] [--parts PART ...] [--json OUT]

Functions of 100 000 dimensions (Ackley, sphere, Rosenbrock; Adam), four small networks as in
`parallel_initialization.py` (digits: mlp, cnn; text: gpt, rnn), and a pole on a cart (REINFORCE, in JAX). A sequential
step has N gradients, each of a batch of its own, in the order in which the plain optimizer would see the batches: its
ideal is 1 / N of the plain steps. Losses are of data that aren't trained on, as means of 3 steps. The target is the
median loss that the plain optimizer has after 60 % of its steps, by other seeds than those that are judged (0 to 4),
and a run that doesn't reach it counts as if it took 1.5 times all steps. Ratios are to the plain optimizer with the
same seed and batches, with 95 % intervals. "Early" is after 15 % of the steps. Errors and cosines are between each
estimate and the true gradient of its batch, of which noise is a part.

Default settings were chosen with seeds 1000 and 1001 alone, and so are tuned rates, of 1, 2 and 4 times the plain
optimizer's, which is the best one that `parallel_initialization.py` knows. In a second part one default is changed at
a time. The third one has the seconds of estimates, and of steps on two real Ray workers. Rows that the JSON file has
aren't measured again.

Exit status 1 where an aim isn't held: 1.5 times fewer sequential steps on each function with N = 5; surely faster on
two of four networks and none slower by over 5 % with N = 4; estimates under half of a gradient's seconds in float32,
and under 20 % in bfloat16 with 1 % of the coordinates.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

# Before jax is imported.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
from tqdm import tqdm

from ahead._overhead import SETTINGS, cholesky, on_workers, overhead
from ahead._plan import ABLATED, JUDGED, PLAIN, TUNING, Way, ablations, ways
from ahead._problems import MAKERS, Problem
from ahead._report import figures, made, tables
from ahead._runs import PART, WINDOW, trained
from harness import Results, options, wrong_input_told

PARTS = ("runs", "ablations", "seconds", "workers")


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what is missing, and shows all that is known."""
    parser = options(__doc__)
    parser.add_argument("--problems", nargs="*", choices=list(MAKERS), default=list(MAKERS), help="measure these alone")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="measure these alone")
    given = parser.parse_args(arguments)
    results = Results(given.json, {"judged": JUDGED, "tuning": TUNING}, targets={})
    problems = made(MAKERS)
    for name in given.problems if "runs" in given.parts else ():
        for way in tqdm(ways(problems[name]), name, unit="way"):
            _measure(results, problems[name], way, "runs")
    for name in [name for name in ABLATED if name in given.problems] if "ablations" in given.parts else ():
        for way in tqdm(ablations(problems[name]), f"{name}, one setting changed", unit="way"):
            _measure(results, problems[name], way, "ablations")
    if "seconds" in given.parts:
        for name, settings in SETTINGS.items():
            results.known("overhead", name, lambda settings=settings: overhead(settings, 7))  # type: ignore[misc]
        results.known("cholesky", "50 points", cholesky)
    if "workers" in given.parts:
        results.known("workers", "two", lambda: on_workers(7))
    return results.shown(*tables(results, problems), figures=figures(results, problems))


def _measure(results: Results, problem: Problem, way: Way, part: str) -> None:
    target = _target(results, problem)

    def rate() -> dict[str, float]:
        if len(way.rates) == 1:
            return {"rate": way.rates[0]}

        def steps(factor: float) -> float:
            runs = [trained(problem, way.program, seed, target, factor, way.parallel, way.trust) for seed in TUNING]
            return float(np.mean([run["reached"] or 2 * problem.steps for run in runs]))

        return {"rate": min(way.rates, key=steps)}

    factor = results.known("rates", f"{problem.name}, {way.name}", rate)["rate"]
    for seed in JUDGED:
        results.known(part, f"{problem.name}, {way.name}, {seed}", lambda seed=seed: {  # type: ignore[misc]
            "rate": factor, **trained(problem, way.program, seed, target, factor, way.parallel, way.trust)
        })  # fmt: skip


def _target(results: Results, problem: Problem) -> float:
    """The plain optimizer's loss after a part of its steps, with seeds that aren't judged."""

    def told() -> dict[str, float]:
        last = round(PART * problem.steps)
        losses = [trained(problem, PLAIN, seed, -np.inf)["losses"] for seed in TUNING]
        return {"target": float(np.median([np.mean(each[last - WINDOW : last]) for each in losses]))}

    return float(results.known("targets", problem.name, told)["target"])


if __name__ == "__main__":
    raise SystemExit(main())
