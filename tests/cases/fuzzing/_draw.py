"""Examples of each kind, drawn by a seed and run one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import hypothesis
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st

from fuzzing._example import Example
from fuzzing._flags import flag_examples, model_examples, output_examples, size_examples, variable_examples
from fuzzing._formats import FORMATS
from fuzzing._outcome import Outcome
from fuzzing._right import Files

_WEIGHTS = {"flags": 4, "outputs": 2, "models": 2}
"""So many times as many examples as of other kinds."""

Examples = st.SearchStrategy[Example]


def kinds(right: Files) -> dict[str, Examples]:
    """The examples of each kind, made of right files."""
    found = {form.name: form.examples(right) for form in FORMATS}
    others: Mapping[str, Callable[[Files], Examples]] = {
        "flags": flag_examples,
        "sizes": size_examples,
        "outputs": output_examples,
        "models": model_examples,
        "variables": variable_examples,
    }
    return found | {name: made(right) for name, made in others.items()}


def drawn(examples: Examples, count: int, start: int, run: Callable[[Example], Outcome]) -> list[Outcome]:
    """Runs so many examples, the same ones for the same start."""
    outcomes: list[Outcome] = []

    @seed(start)
    @settings(
        max_examples=count, database=None, deadline=None, phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.given(examples)
    def all_of_them(example: Example) -> None:
        outcomes.append(run(example))

    all_of_them()
    return outcomes


@st.composite
def command_examples(draw: st.DrawFn, examples: Sequence[Examples]) -> Example:
    """Examples some of which are interrupted, can't write what they print, or may print few characters alone."""
    example = draw(st.one_of(*examples))
    stdout = draw(st.sampled_from(("", "", "", "", "full", "closed")))
    after_s = draw(st.sampled_from((None, None, None, None, 0.05, 0.2, 0.4, 0.8, 1.5)))
    interrupted_s = None if example.reader else after_s  # only the command line promises how it ends then
    encodings = ((), (), (), (("PYTHONIOENCODING", "ascii"),), (("LC_ALL", "C"), ("PYTHONUTF8", "0")))
    environment = (*example.environment, *draw(st.sampled_from(encodings)))
    return dataclasses.replace(
        example, kind="as a command", stdout=stdout, interrupted_s=interrupted_s, environment=environment
    )


def shares(names: Iterable[str], total: int) -> dict[str, int]:
    """How many examples of each kind there are; together so many."""
    parts = [name for name in names for _ in range(_WEIGHTS.get(name, 1))]
    found = dict.fromkeys(parts, 0)
    for place in range(total):
        found[parts[place % len(parts)]] += 1
    return {name: count for name, count in found.items() if count}
