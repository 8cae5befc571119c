"""Rooms of the package, and what in them is experimental."""

import ast
import collections
import pathlib
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

import alpa_dejavu
from alpa_dejavu.cli.main import main
from alpa_dejavu.sharding import experimental as sharding
from alpa_dejavu.slicing import EXPERIMENTAL, SLICERS, Dynamic, experimental, slicer
from map import imported

ROOT = pathlib.Path(alpa_dejavu.__file__).parent
BESIDE = {"__init__.py", "__main__.py", "testing.py"}


def room_of(module):
    return module.split(".")[1] if "." in module else ""


def is_private(module):
    """Whether a module inside of a room, not the room itself, has a private name."""
    path = ROOT.parent / pathlib.Path(*module.split("."))
    parts = module.split(".")[2:] if path.with_suffix(".py").exists() or path.is_dir() else module.split(".")[2:-1]
    return any(part.startswith("_") for part in parts)


def test_no_module_is_loose():
    assert {path.name for path in ROOT.glob("*.py")} == BESIDE


def test_nobody_reaches_into_the_private_modules_of_another_room():
    found = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in ROOT.rglob("*.py")
        for module in imported(ast.parse(path.read_text(encoding="utf-8")), types=True)
        if module.startswith("alpa_dejavu.")
        if room_of(module) != path.relative_to(ROOT).parts[0] and is_private(module)
    ]
    assert found == []


def test_the_package_and_the_patches_know_only_public_modules_of_each_other():
    patches = ROOT.parent / "patches" / "alpa_stock_jax"
    private = [
        f"{path.relative_to(ROOT.parent)}: {module}"
        for path in [*ROOT.rglob("*.py"), *patches.rglob("*.py")]
        for module in imported(ast.parse(path.read_text(encoding="utf-8")), types=True)
        if module.startswith("alpa_stock_jax._" if ROOT in path.parents else "alpa_dejavu.")
        if ROOT in path.parents or any(part.startswith("_") for part in module.split("."))
    ]
    assert private == []


def test_a_class_name_stands_for_one_class():
    homes = collections.defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes[node.name.removeprefix("_")].append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_importing_the_package_loads_little():
    code = "import sys, alpa_dejavu; print({'numpy', 'jax', 'alpa', 'pydantic'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


def test_docstrings_are_understood_without_the_name_above_them():
    found = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if (ast.get_docstring(node) or "").startswith(("What ", "Of "))
    ]
    assert found == []


PACKAGE = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("command", ["plan", "replan"])
def test_experimental_slicers_can_be_chosen_and_help_says_so(command):
    assert set(EXPERIMENTAL) < set(SLICERS)
    assert not any(isinstance(slicer(name), Dynamic) for name in EXPERIMENTAL)
    said = " ".join(CliRunner().invoke(main, [command, "--help-all"]).output.split())
    assert f"Experimental, no better than the default in docs/results/slicers.md: {', '.join(EXPERIMENTAL)}." in said


@pytest.mark.parametrize("package", [experimental, sharding])
def test_an_experimental_package_names_the_page_of_its_figures(package):
    (page,) = re.findall(r"docs/results/\S+\.md", package.__doc__)
    assert package.__doc__.startswith("Experimental: ")
    assert (PACKAGE / page).is_file()
