"""The pages for people: links lead somewhere, names can be imported, the map is current, the README stays short, and
generated tables say what their runs say.
"""

import importlib
import json
import pathlib
import re
import subprocess
import sys
import urllib.parse

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAP = ROOT / "docs" / "map.md"

pages = pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])


def without_code(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    """The anchors of a page's headings, by GitHub's rule."""
    seen = {}
    for heading in re.findall(r"^#{1,6} +(.+?) *$", without_code(text), flags=re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        yield slug if slug not in seen else f"{slug}-{seen[slug]}"
        seen[slug] = seen.get(slug, 0) + 1


def links(text):
    """The targets of all links and pictures of a page; a reference without a definition is one to its own name."""
    text = re.sub(r"`[^`\n]*`", "", without_code(text))
    defined = dict(re.findall(r"^\[([^]]+)\]: (\S+)$", text, flags=re.MULTILINE))
    yield from re.findall(r"\]\(([^)\s]+)\)", text)
    yield from (defined.get(name, f"no definition of [{name}]") for name in re.findall(r"\]\[([^]]+)\]", text))
    yield from defined.values()


def broken_links(page):
    for link in links(page.read_text(encoding="utf-8")):
        parts = urllib.parse.urlsplit(link)
        target = page.parent / urllib.parse.unquote(parts.path) if parts.path else page
        if parts.scheme:
            continue
        if not target.exists() or target.is_dir():
            yield f"{link}: there is no such file"
        elif parts.fragment and parts.fragment not in anchors(target.read_text(encoding="utf-8")):
            yield f"{link}: there is no such heading"


def runs():
    """The tables of each run that is kept, by the benchmark's name and by the file's."""
    for file in (ROOT / "docs" / "results").glob("*.json"):
        result = json.loads(file.read_text(encoding="utf-8"))
        tables = [table for table in result["tables"] if isinstance(table, dict)]
        rows = [row for table in tables for row in (table["columns"], *table["rows"])]
        yield file.stem, rows
        yield pathlib.Path(result["run"]["command"].split()[1]).stem, rows


def rows_of_no_run(text, known):
    """Rows of generated tables that no row of their run's JSON has, whose columns may be fewer here."""
    for name, block in re.findall(r"<!-- (\w+): begin -->\n(.*?)<!-- \1: end -->", text, flags=re.DOTALL):
        for line in re.findall(r"^\| (?!---)(.*) \|$", block, flags=re.MULTILINE) if name in known else ():
            cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)]
            if not any(_in_order(cells, row) for row in known[name]):
                yield line


def _in_order(cells, row):
    others = iter(row)
    return all(any(cell == other.strip() for other in others) for cell in cells)


def unknown_names(text):
    for name in sorted(set(re.findall(r"(?<![\w./-])alpa_dejavu(?:\.[A-Za-z_]\w*)+", text))):
        parts = name.split(".")
        for count in range(len(parts), 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:count]))
            except ModuleNotFoundError:
                continue
            if not all(hasattr(found, part) and (found := getattr(found, part), True) for part in parts[count:]):
                yield name
            break


def run_map(*arguments):
    command = [sys.executable, str(ROOT / "tools" / "map.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pages
def test_links_lead_to_files_and_headings_that_are_there(page):
    assert list(broken_links(page)) == []


@pages
def test_names_of_the_package_can_be_imported(page):
    assert list(unknown_names(page.read_text(encoding="utf-8"))) == []


@pages
def test_lines_are_not_too_long(page):
    assert [line for line in page.read_text(encoding="utf-8").splitlines() if len(line) > 120] == []


@pages
def test_generated_tables_say_what_their_runs_say(page):
    known = {}
    for name, rows in runs():
        known.setdefault(name, []).extend(rows)
    assert list(rows_of_no_run(page.read_text(encoding="utf-8"), known)) == []


def test_a_row_that_no_run_has_is_found():
    known = {"it": [["a", "b", "c"], ["1", "2 | 3", "4"]]}
    text = "<!-- {0}: begin -->\n| a | c |\n| --- | --- |\n| 1 | {1} |\n<!-- {0}: end -->\n"
    assert list(rows_of_no_run(text.format("it", "4") + text.format("other", "5"), known)) == []
    assert list(rows_of_no_run(text.format("it", "2 \\| 3"), known)) == []
    assert list(rows_of_no_run(text.format("it", "5"), known)) == ["1 | 5"]


def test_the_list_of_pages_has_them_all():
    listed = {
        (ROOT / "docs" / urllib.parse.urlsplit(link).path).resolve()
        for link in links((ROOT / "docs" / "README.md").read_text(encoding="utf-8"))
    }
    assert [page for page in PAGES if page not in listed | {ROOT / "docs" / "README.md"}] == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_map_is_current():
    run = run_map("--check")
    assert run.returncode == 0, run.stderr


def test_the_map_names_every_package():
    rooms = {init.parent.name for init in (ROOT / "alpa_dejavu").glob("*/__init__.py")}
    described = set(re.findall(r"^- `(\w+)/` holds ", MAP.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert described == rooms


def test_a_map_that_is_not_current_is_found_and_drawn_again(tmp_path):
    old, text = tmp_path / "map.md", MAP.read_text(encoding="utf-8")
    assert "  cli --> alpa\n" in text
    old.write_text(text.replace("  cli --> alpa\n", ""), encoding="utf-8")
    run = run_map("--check", "--map", str(old))
    assert run.returncode == 1
    assert "isn't current" in run.stderr
    assert run_map("--map", str(old)).returncode == 0
    assert old.read_text(encoding="utf-8") == text


def test_a_map_without_marks_is_refused(tmp_path):
    page = tmp_path / "map.md"
    page.write_text("# A map\n", encoding="utf-8")
    run = run_map("--map", str(page))
    assert run.returncode == 1
    assert "must have one line" in run.stderr
    assert page.read_text(encoding="utf-8") == "# A map\n"


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# A title\n\n## It's *one*, `two`\n\n## A title\n", encoding="utf-8")
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#its-one-two) [c](other.md#a-title-1) [d](#here) [e](https://x.org/y)\n"
        "[f](gone.md) ![g](gone.png) [h](other.md#gone) [i](#gone) [j][gone] [k][l]\n\n[l]: gone.py\n"
        "`[m](code.md)`\n\n```\n[n](code.md)\n```\n",
        encoding="utf-8",
    )
    found = [one.partition(": ")[0] for one in broken_links(page)]
    assert found == ["gone.md", "gone.png", "other.md#gone", "#gone", "no definition of [gone]", "gone.py", "gone.py"]


def test_unknown_names_are_found():
    text = "`alpa_dejavu.plan`, alpa_dejavu.slicing.Slicer, alpa_dejavu.slicing.Slicer.slice, alpa_dejavu/a.py"
    assert list(unknown_names(text)) == []
    wrong = "alpa_dejavu.gone alpa_dejavu.slicing.Gone alpa_dejavu.slicing.Slicer.gone"
    assert list(unknown_names(wrong)) == sorted(wrong.split())
