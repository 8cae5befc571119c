"""Scenarios: training as a file describes it, run over its exchanges and seeds, and what came of that compared.

In: a YAML file, which names problem, cluster, exchanges, faults and a target, and no code.
Out: `Runs` with a history of each exchange and seed, a file of them, curves with intervals, and a page.
"""

from __future__ import annotations

from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground.scenarios._comparison import Answer, Compared, ComparedCurve, answer, answer_lines, compared
from alpa_dejavu.playground.scenarios._read import read_scenario
from alpa_dejavu.playground.scenarios._read_job import TOPOLOGY_WORDS
from alpa_dejavu.playground.scenarios._scenario import (
    Question,
    Runs,
    RunTarget,
    Scenario,
    ScenarioRun,
    growing_runs,
    run_scenario,
)
from alpa_dejavu.playground.scenarios._table import NOTE, details, runs_page, tables, target_text
from alpa_dejavu.playground.scenarios.runs_file import read_runs, runs_text, write_runs

__all__ = [
    "NOTE", "TOPOLOGY_WORDS", "Answer", "Compared", "ComparedCurve", "Interval", "Question", "RunTarget", "Runs",
    "Scenario", "ScenarioRun", "answer", "answer_lines", "compared", "details", "growing_runs", "read_runs",
    "read_scenario", "run_scenario", "runs_page", "runs_text", "tables", "target_text", "write_runs",
]  # fmt: skip
