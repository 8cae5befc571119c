"""Counts of Alpa's own tests, file by file, and the table of them."""

from __future__ import annotations

import ast
import collections
import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness import Table

_FILES_FOR_GPU = ("runtime/test_xla_nccl.py",)
_LONGEST_CAUSE = 160
_BY_HAND = "\n## On a newer jax\n"


@dataclasses.dataclass(frozen=True)
class FileResult:
    """One file; `failed` includes tests that ran out of time and what could not be collected."""

    path: str
    passed: int
    failed: int
    skipped: int
    cause: str = ""
    counts: bool = True
    seconds: float = 0.0

    @property
    def folder(self) -> str:
        """The folder in Alpa's tests."""
        return self.path.split("/")[0]


def gpu_only(tests: Path, path: str) -> bool:
    """Whether the file needs a GPU by what it is for, or imports cupy."""
    source = (tests / path).read_text(encoding="utf-8")
    return path in _FILES_FOR_GPU or re.search(r"^\s*(import|from) cupy\b", source, re.MULTILINE) is not None


def count(tests: Path, path: str, record: Sequence[str], ending: str) -> FileResult:
    """The result of a file from the lines of `_outcomes_plugin`; `ending` says why it ended early, or is empty."""
    collected: list[str] = []
    outcomes: dict[str, str] = {}
    causes: list[str] = []
    for line in map(json.loads, record):
        collected += line.get("collected", [])
        if "uncollected" in line:
            causes.append(line["uncollected"].strip().splitlines()[-1])
        if "test" in line and outcomes.get(line["test"]) in (None, "passed"):
            outcomes[line["test"]] = line["outcome"]
            if line["cause"]:
                causes.append(line["cause"])
    counted = collections.Counter(outcomes.values())
    # A file that defines no test, and could be collected, has none to fail.
    empty = _defined_tests(tests / path) == 0 and not causes and any(line == '{"collected": []}' for line in record)
    expected = 0 if empty else len(collected) or max(_defined_tests(tests / path), 1)
    if empty:
        causes.append("defines no tests")
    unfinished = max(expected - len(outcomes), 0)
    if unfinished and ending:
        causes.insert(0, ending)
    failed = counted["failed"] + unfinished
    counts = not gpu_only(tests, path)
    causes = [cause.replace(f"{tests}/", "") for cause in causes]
    return FileResult(path, counted["passed"], failed, counted["skipped"], _summary(causes), counts)


def _defined_tests(path: Path) -> int:
    """How many tests the source has: the count for a file that could not be collected."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return sum(name.startswith("test") for name in names)


def _summary(causes: Iterable[str]) -> str:
    """The causes in a line, the frequent ones first, fit for a cell of a table."""
    heads = collections.Counter(" ".join(cause.split())[:_LONGEST_CAUSE] for cause in causes)
    return "; ".join(f"{cause} ({times} times)" if times > 1 else cause for cause, times in heads.most_common(3))


def tables(results: Sequence[FileResult]) -> tuple[Table, Table]:
    """The table of folders, without files that need a GPU, and the table of files."""
    counting = [result for result in results if result.counts]
    folders = [
        _total(folder, [result for result in counting if result.folder == folder])
        for folder in sorted({result.folder for result in counting})
    ]
    files = tuple((one.path, str(one.passed), str(one.failed), str(one.skipped), _shown_cause(one)) for one in results)
    counts = "passed", "failed", "skipped"
    by_folder = Table(("folder", *counts, "share passed"), (*folders, _total("all", counting)))
    return by_folder, Table(("path", *counts, "cause"), files)


def page(heading: str, folders: Table, files: Table, old: str = "") -> str:
    """The page with both tables, as Markdown, and what an old page says by hand of another jax."""
    said = "A skipped test is no passed one. Files that need a GPU are in the next table, not in this one."
    parts = ("# Alpa's own tests, unchanged", heading, "## Folders", folders.markdown(), said, "## Files")
    _, title, kept = old.partition(_BY_HAND)
    return "\n\n".join((*parts, files.markdown())) + "\n" + title + kept


def _shown_cause(result: FileResult) -> str:
    return result.cause if result.counts else f"GPU only, not counted: {result.cause}".rstrip(": ")


def _total(name: str, results: Sequence[FileResult]) -> tuple[str, ...]:
    passed, failed, skipped = (sum(getattr(r, field) for r in results) for field in ("passed", "failed", "skipped"))
    share = passed / max(passed + failed + skipped, 1)
    return name, str(passed), str(failed), str(skipped), f"{share:.1%}"
