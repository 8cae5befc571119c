"""Drawn training steps under Alpa and on one device: equal, said not to be known, or refused; none may be wrong.

    python benchmarks/ordinary_models.py [--models N] [--first SEED] [--alone] [--json FILE]

Steps are drawn from seeds by `tests/cases/drawn_models.py`; those of `training_jobs.py` and `step_zoo.py` beside it are
the first. Each is run twice on a mesh of CPU devices and in a pipeline on a Ray cluster of four, over 1, 2 or 4
micro-batches, with and without remat, the state carried on. Everything that it gives is compared with what `jax.jit`
gives on one device, to rounding. A run that was broken off goes on where it was by the same command. 200 models take
about an hour on 2 cores. Exit status 1 if one of them is wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
sys.path += [str(Path(__file__).parents[1] / name) for name in ("tests/cases", "examples")]

from tqdm import tqdm

from harness import Figure, Results, Table, at_least, options, wrong_input_told

Row = Mapping[str, Any]


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the models and shows what became of them; exit status 1 if one is wrong."""
    parser = options(__doc__)
    parser.add_argument("--models", type=at_least(1), default=200, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=at_least(0), default=0, metavar="SEED", help="of the first (default: 0)")
    parser.add_argument("--alone", action="store_true", help="leave out the steps of the other tests")
    given = parser.parse_args(arguments)
    results = Results(given.json, {"models": given.models, "first": given.first, "alone": given.alone})
    _run(results, range(given.first, given.first + given.models), given.alone)
    rows = list(results["rows"].values())
    wrong = sum(row["verdict"] == "wrong" for row in rows)
    equal = sum(row["verdict"] == "equal" for row in rows)
    figure = Figure("drawn models", "runs that are wrong", "0", f"{wrong}, and {equal} equal", wrong == 0)
    return results.shown(*_tables(rows), figures=[figure])


def _run(results: Results, drawn: Sequence[int], alone: bool) -> None:
    from drawn_runs import NAMES, configurations, outcomes

    seeds: list[int | str] = [*drawn] if alone else [*NAMES, *drawn]
    known = results.setdefault("rows", {})
    pairs = [(seed, one) for seed in seeds for one in configurations(seed) if f"{seed}: {one.name}" not in known]
    with tqdm(pairs, unit="run") as bar:
        for (seed, one), features, made in outcomes(pairs):
            root = f"{Path(__file__).parents[1]}/"
            made = dataclasses.replace(made, said=made.said.replace(root, ""), where=made.where.replace(root, ""))
            row = {"seed": seed, "features": features, **dataclasses.asdict(one), **dataclasses.asdict(made)}
            known[f"{seed}: {one.name}"] = row
            results.write()
            bar.update()


def _tables(rows: Sequence[Row]) -> Iterator[Table | str]:
    verdicts = ("equal", "warned", "refused", "wrong")
    columns = {name: f"{{{name}}}" for name in ("how", "runs", *verdicts)}
    counted = []
    for how, chosen in _KINDS.items():
        found = [row["verdict"] for row in rows if chosen(row)]
        counted.append({"how": how, "runs": len(found), **{verdict: found.count(verdict) for verdict in verdicts}})
    yield Table.of(counted, columns)
    reasons: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["reason"]:
            reasons.setdefault((row["verdict"], row["reason"]), []).append(row)
    said = [
        {"verdict": verdict, "why": why, "runs": len(of), "models": len({row["seed"] for row in of}),
         "such as": f"{of[0]['seed']}: {of[0]['said'][:160]}" if verdict == "wrong" else f"{of[0]['seed']}"}
        for (verdict, why), of in sorted(reasons.items(), key=lambda item: (item[0][0], -len(item[1])))
    ]  # fmt: skip
    yield Table.of(said, {name: f"{{{name}}}" for name in ("verdict", "why", "runs", "models", "such as")})


_KINDS: dict[str, Callable[[Row], bool]] = {
    "one mesh": lambda row: not row["stages"],
    **{f"{n} stage{'s' * (n > 1)}": functools.partial(lambda row, n: row["stages"] == n, n=n) for n in range(1, 5)},
    **{f"{n} micro-batch{'es' * (n > 1)}": functools.partial(lambda row, n: row["micro_batches"] == n, n=n)
       for n in (1, 2, 4)},
    "layers with remat": lambda row: row["remat"] != "none",
    "all": lambda row: True,
}  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
