"""The pages for people: links lead somewhere, names can be imported, blocks of Python are Python, the map is current,
the site can be built, the README stays short, and tables and figures are those of their runs.
"""

import ast
import importlib
import json
import pathlib
import re
import subprocess
import sys
import urllib.parse

import pytest

from page import main as fill_pages

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
    shown = re.sub(r"<!--=\S+?-->", "", page.read_text(encoding="utf-8"))
    assert [line for line in shown.splitlines() if len(line) > 120] == []


@pages
def test_blocks_of_python_are_python(page):
    for block in re.findall(
        r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    ):
        ast.parse(block)


def test_tables_and_figures_are_those_of_their_runs(capsys):
    assert fill_pages(["--check"]) == 0, capsys.readouterr()


def test_each_declared_figure_is_shown_or_divides_one():
    declared = json.loads((ROOT / "docs" / "results" / "figures.json").read_text(encoding="utf-8"))
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = set(re.findall(r"<!--=(\S+?)-->", text)) | {figure.get("over") for figure in declared.values()}
    assert set(declared) <= shown


@pages
def test_no_figure_begins_a_line_where_its_mark_would_be_a_block(page):
    assert re.findall(r"^\s*(?:- )?<!--=.*$", page.read_text(encoding="utf-8"), flags=re.MULTILINE) == []


def test_the_site_is_built_from_all_pages_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stdout + run.stderr
    assert len(list(tmp_path.rglob("*.html"))) == len(PAGES)  # the README isn't one of them, and 404.html is


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
