"""Scenarios: training as a file describes it, run over its exchanges and seeds, and what came of that compared.

In: a YAML file, which names problem, cluster, exchanges, faults and a target, and no code.
Out: `Runs` with a history of each exchange and seed, a file of them, curves with intervals, and a page.
"""

from __future__ import annotations

from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground.scenarios._answer import Answer, answer, answer_lines
from alpa_dejavu.playground.scenarios._comparison import Compared, Curve, compared
from alpa_dejavu.playground.scenarios._named import TOPOLOGY_WORDS
from alpa_dejavu.playground.scenarios._page import runs_page
from alpa_dejavu.playground.scenarios._read import read_scenario
from alpa_dejavu.playground.scenarios._real import growing_real_runs, side_by_side
from alpa_dejavu.playground.scenarios._runs_file import read_runs, runs_text, write_runs
from alpa_dejavu.playground.scenarios._scenario import (
    Question,
    Run,
    Runs,
    Scenario,
    Target,
    growing_runs,
    run_scenario,
)
from alpa_dejavu.playground.scenarios._table import NOTE, details, tables, target_text

__all__ = [
    "NOTE",
    "TOPOLOGY_WORDS",
    "Answer",
    "Compared",
    "Curve",
    "Interval",
    "Question",
    "Run",
    "Runs",
    "Scenario",
    "Target",
    "answer",
    "answer_lines",
    "compared",
    "details",
    "growing_real_runs",
    "growing_runs",
    "read_runs",
    "read_scenario",
    "run_scenario",
    "runs_page",
    "runs_text",
    "side_by_side",
    "tables",
    "target_text",
    "write_runs",
]
