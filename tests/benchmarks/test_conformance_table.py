import json
from pathlib import Path

import pytest

from _conformance import FileResult, count, gpu_only, page, tables

SOURCE = "class T:\n    def test_a(self): ...\n    def test_b(self): ...\n    def test_c(self): ...\n"


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    for path, source in {
        "runtime/test_x.py": SOURCE,
        "runtime/test_cupy.py": "import cupy\n",
        "runtime/test_xla_nccl.py": "",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(source)
    return tmp_path


def _lines(*lines: dict[str, object]) -> list[str]:
    return [json.dumps(line) for line in lines]


def test_what_did_not_finish_failed(tests: Path) -> None:
    record = _lines(
        {"collected": ["a", "b", "c"]},
        {"test": "a", "when": "call", "outcome": "passed", "cause": ""},
        {"test": "b", "when": "call", "outcome": "skipped", "cause": "no | device"},
    )
    result = count(tests, "runtime/test_x.py", record, "out of time after 5 s")
    assert (result.passed, result.failed, result.skipped) == (1, 1, 1)
    assert result.cause == "out of time after 5 s; no | device"


def test_what_cannot_be_collected_failed_as_often_as_it_has_tests(tests: Path) -> None:
    result = count(tests, "runtime/test_x.py", _lines({"uncollected": "Traceback\nImportError: no"}), "")
    assert (result.passed, result.failed, result.skipped) == (0, 3, 0)
    assert "ImportError: no" in result.cause


def test_files_for_gpus_do_not_count(tests: Path) -> None:
    assert [gpu_only(tests, f"runtime/test_{name}.py") for name in ("x", "cupy", "xla_nccl")] == [False, True, True]
    files = [FileResult("util/test_a.py", 3, 1, 0), FileResult("runtime/test_xla_nccl.py", 0, 2, 0, counts=False)]
    table = page("heading", *tables(files))
    assert "| util | 3 | 1 | 0 | 75.0% |" in table
    assert "| all | 3 | 1 | 0 | 75.0% |" in table
    assert "| runtime/test_xla_nccl.py | 0 | 2 | 0 | GPU only, not counted |" in table
