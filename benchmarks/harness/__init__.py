"""The parts that all benchmarks share: options, results that a later run goes on from, tables, figures with aims,
and processes beside this one.

A benchmark makes its options, computes rows into `Results`, and ends with `Results.shown`, which prints tables and
figures, keeps them in the JSON file beside the rows, and returns the exit status. `page.py` writes the tables and
figures of README.md and docs/ from such files alone.
"""

from __future__ import annotations

from harness._remote import Remote, answer_all, peak_bytes
from harness._results import Results, at_least, options, wrong_input_told
from harness._tables import Figure, Table, show

__all__ = [
    "Figure", "Remote", "Results", "Table", "answer_all", "at_least",
    "options", "peak_bytes", "show", "wrong_input_told",
]  # fmt: skip
