"""Broken files, flags, paths and models by the thousand: whatever they are, the command line ends as it should.

    python benchmarks/fuzz.py [--seed N] [--examples N] [--commands N] [--only KIND ...] [--json FILE] [--keep DIR]

Right files of every format are made as the product writes them, and then broken: keys left out, doubled or renamed,
values of other types, extreme numbers, lists in lists, other encodings, bits flipped, ends cut off, control characters
and names in other scripts, folders and links in place of files. So are the flags of every command, the paths that it
writes, variables of the environment, and models. Most examples run in a process that stays, the others as commands,
some of which are interrupted, or have nowhere to write to.

An example has to end with 0, 1, 2 or 130, without a traceback unless a user's own model raises, without control
characters on the terminal, in time and memory; what it writes is whole, what it isn't asked to write stays as it was,
and nothing that a file names is run. What fails is laid out in a folder, with the line that makes it again. Exit status
1 if anything does.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests/cases"))

from tqdm import tqdm

from fuzzing._draw import Examples, command_examples, drawn, kinds, shares
from fuzzing._example import Example
from fuzzing._outcome import ALLOWED, Limits, Outcome, last_line, tally
from fuzzing._right import right_files
from fuzzing._runs import Worker, as_command, outcome_of
from harness import Results, Table, at_least, options

_MOST_KEPT = 3
"""So many examples of a sort of failure are laid out."""

Failures = Mapping[str, Sequence[Outcome]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the examples and shows what became of them; exit status 1 if one failed."""
    given = _parsed(arguments)
    if given.keep.exists() and any(given.keep.iterdir()):
        raise SystemExit(f"{given.keep} has failures of another run; move it away, or give another folder by --keep")
    limits = Limits(given.seconds, given.gibibytes * 2**30)
    with tempfile.TemporaryDirectory() as folder:
        right = right_files(Path(folder))
    chosen = {name: made for name, made in kinds(right).items() if name in (given.only or [name])}
    outcomes = _in_process(chosen, given, limits) + _as_commands(chosen, given, limits)
    failures = tally(outcomes)
    lines = {sort: _kept(place, alike, given.keep) for place, (sort, alike) in enumerate(failures.items())}
    results = Results(given.json, **_data(outcomes, failures, lines))
    results.shown(*_shown(results, len(outcomes)))
    return 1 if failures else 0


def _in_process(chosen: Mapping[str, Examples], given: argparse.Namespace, limits: Limits) -> list[Outcome]:
    outcomes: list[Outcome] = []
    with Worker(limits) as worker, tqdm(desc="in process", total=given.examples, unit="example") as bar:

        def run(example: Example) -> Outcome:
            bar.update()
            return _light(outcome_of(example, worker.run, limits))

        for place, (name, count) in enumerate(shares(chosen, given.examples).items()):
            outcomes += drawn(chosen[name], count, given.seed + 1000 * place, run)
    return outcomes


def _as_commands(chosen: Mapping[str, Examples], given: argparse.Namespace, limits: Limits) -> list[Outcome]:
    if not given.commands:
        return []
    with tqdm(desc="commands", total=given.commands, unit="example") as bar:

        def run(example: Example) -> Outcome:
            bar.update()
            return _light(outcome_of(example, lambda one, folder: as_command(one, folder, limits), limits))

        return drawn(command_examples([*chosen.values()]), given.commands, given.seed, run)


def _light(outcome: Outcome) -> Outcome:
    """An outcome without what a good example held: a command's memory counts from that of this process."""
    if outcome.faults:
        return outcome
    example, ended = dataclasses.replace(outcome.example, files=()), outcome.ended
    return dataclasses.replace(outcome, example=example, ended=dataclasses.replace(ended, stdout="", stderr=""))


def _kept(sort: int, alike: Sequence[Outcome], where: Path) -> list[str]:
    """Lays out the first failures of a sort; returns the lines that make them again."""
    lines = []
    for place, outcome in enumerate(sorted(alike, key=_size)[:_MOST_KEPT]):
        folder = where.absolute() / f"{sort:03d}-{place}"
        folder.mkdir(parents=True, exist_ok=True)
        outcome.example.place(folder)
        line = outcome.example.shown(folder)
        said = f"{line}\n\n{'; '.join(outcome.faults)}\n{outcome.ended.where}\n\n{outcome.ended.stderr}"
        (folder / "failure.txt").write_text(said, encoding="utf-8", errors="backslashreplace")
        lines.append(line)
    return lines


def _size(outcome: Outcome) -> int:
    example = outcome.example
    return sum(map(len, example.arguments)) + sum(len(file.content) for file in example.files)


def _shown(data: Mapping[str, Any], count: int) -> Iterator[Table | str]:
    columns = {name: f"{{{name}}}" for name in ("kind", "examples", *(f"exit {code}" for code in ALLOWED), "failed")}
    columns |= {"slowest": "{slowest_s:seconds}", "most memory": "{most_bytes:size}"}
    kinds = data["kinds"].items()
    yield Table.of([{"kind": kind, **row} for kind, row in kinds], columns)
    for sort in data["failures"]:
        yield f"{sort['count']} x {sort['sort']!a}\n    {sort['said'][:200]!a}\n    {sort['again'][0]!a}"
    failed = sum(sort["count"] for sort in data["failures"])
    yield f"{count} examples, {failed} failures of {len(data['failures'])} sorts"


def _row(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    ended = [outcome.ended for outcome in outcomes]
    return {
        "examples": len(ended),
        **{f"exit {code}": sum(one.code == code for one in ended) for code in ALLOWED},
        "failed": sum(bool(outcome.faults) for outcome in outcomes),
        "slowest_s": max(one.seconds for one in ended),
        "most_bytes": max(one.memory_bytes for one in ended),
    }


def _data(outcomes: Sequence[Outcome], failures: Failures, lines: Mapping[str, list[str]]) -> dict[str, Any]:
    by_kind = {
        kind: _row([outcome for outcome in outcomes if outcome.example.kind == kind])
        for kind in dict.fromkeys(outcome.example.kind for outcome in outcomes)
    }
    found = [
        {
            "sort": sort,
            "count": len(alike),
            "kinds": sorted({outcome.example.kind for outcome in alike}),
            "faults": list(alike[0].faults),
            "where": alike[0].ended.where,
            "said": last_line(alike[0].ended.stderr),
            "again": lines[sort],
        }
        for sort, alike in failures.items()
    ]
    return {"kinds": by_kind, "failures": found}


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the examples (default: %(default)s)")
    said = "how many in one process (default: %(default)s)"
    parser.add_argument("--examples", type=at_least(0), default=2800, help=said)
    parser.add_argument("--commands", type=at_least(0), default=200, help="how many as commands (default: %(default)s)")
    parser.add_argument("--only", nargs="+", metavar="KIND", help="examples of these kinds alone (default: all)")
    said = "that an example may take (default: %(default)s)"
    parser.add_argument("--seconds", type=float, default=Limits().seconds, help=said)
    parser.add_argument("--gibibytes", type=float, default=Limits().memory_bytes / 2**30, help=said)
    said = "lay out what fails in this folder (default: %(default)s)"
    parser.add_argument("--keep", type=Path, metavar="DIR", default=Path("fuzz-failures"), help=said)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
