"""Each block of code of the README, the start, the guides and the concepts runs, and prints what its page shows."""

import re
import subprocess
import sys

import pytest

import guides
from guides import GUIDES, ROOT, Run, blocks, is_shown, refreshed

DRAWN = re.compile(r"^(?:\$ |alpa-dejavu |python |make |pip )", re.MULTILINE)
NOT_RUN = 15
"""Blocks that need what isn't at hand, such as a cluster; one more needs a reason."""
every = pytest.mark.parametrize("page", GUIDES, ids=[str(page.relative_to(ROOT)) for page in GUIDES])


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """One cache for all pages, as a reader has."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture
def run(page, caches, tmp_path, monkeypatch):
    monkeypatch.setenv("ALPA_DEJAVU_CACHE", str(caches))
    return Run(page, tmp_path)


@every
def test_blocks_that_are_quick_print_what_is_shown(run):
    assert run.blocks(quick=True).told == []


@pytest.mark.slow
@every
def test_all_blocks_print_what_is_shown(run):
    assert run.blocks().told == []


def test_few_blocks_are_not_run_and_each_says_why():
    found = [block for page in GUIDES for block in blocks(page.read_text(encoding="utf-8"))]
    reasons = [block.marks["not run"] for block in found if "not run" in block.marks]
    assert len(reasons) <= NOT_RUN
    assert all(len(reason.split()) > 3 for reason in reasons)
    unmarked = [block for block in found if block.language == "text" and not block.marks]
    assert [block.text for block in unmarked if DRAWN.search(block.text)] == []


@pytest.mark.parametrize(
    ("shown", "printed", "alike"),
    [
        ("a 10 s\nb", "a  10.05 s\nb", True),
        ("a 10 s", "a 10.2 s", False),
        ("a 10 s", "a 10 ms", False),
        ("a", "a\nb", False),
        ("a\n...", "a\nb\nc", True),
        ("...\nc", "a\nb\nc", True),
        ("a\n...\nc", "a\nb", False),
        ("1,000 of 2", "1,001 of 2", True),
    ],
)
def test_what_is_printed_is_as_shown_but_for_last_digits(shown, printed, alike):
    assert is_shown(shown.splitlines(), printed.splitlines()) == alike


def test_lines_that_a_page_leaves_out_stay_out_when_it_is_written_anew():
    shown = ["step  10 s", "...", "  memory  4 GiB", "..."]
    printed = ["step  11 s", "tokens  5", "memory  6 GiB", "price  3"]
    assert refreshed(shown, printed) == ["step  11 s", "...", "memory  6 GiB", "..."]
    assert refreshed(["...", "nothing of that kind"], printed) == printed


PAGE = """\
<!-- file pair.py -->
```python
PAIR = 1, 2
```

<!-- given:
from pair import PAIR
-->
```python
print(sum(PAIR))
```

<!-- printed -->
```text
4
```

```console
$ cat pair.py
PAIR
$ alpa-dejavu models nobody
```

```bash
false
```
"""


def test_what_a_page_shows_wrongly_is_told_and_written_anew(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    monkeypatch.setattr(guides, "ROOT", tmp_path)
    (tmp_path / "examples").mkdir()
    (tmp_path / "run").mkdir()
    run = Run(page, tmp_path / "run").blocks()
    lines = [told.split(": ")[0] for told in run.told]
    assert lines == ["page.md:15", "page.md:19", "page.md:19", "page.md:25"]
    assert run.filled() == PAGE.replace("4\n", "3\n").replace("PAIR\n$", "PAIR = 1, 2\n$")


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("0*.py")), ids=lambda path: path.stem)
def test_each_example_runs_and_prints_what_can_be_read(path, tmp_path):
    ended = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()
    assert not re.search(r"\[\]|\(\d*,|array\(|Traceback", ended.stdout), ended.stdout
