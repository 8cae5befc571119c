"""The rules of the house: who imports from whom, and that old paths still work."""

import ast
import importlib
import pathlib
import subprocess
import sys
import warnings

import pytest
from map import imported

import alpa_dejavu
from alpa_dejavu._util import moved

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


@pytest.mark.parametrize("old", sorted(moved._MOVED))
def test_an_old_path_works_and_says_where_the_new_one_is(old):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        module = importlib.import_module(f"alpa_dejavu.{old}")
    assert f"alpa_dejavu.{old} has moved to alpa_dejavu.{moved._MOVED[old]}; import it from there" in {
        str(each.message) for each in said
    }
    new = importlib.import_module(f"alpa_dejavu.{moved._MOVED[old]}")
    for name in getattr(new, "__all__", ()):
        assert getattr(module, name) is getattr(new, name)
    sys.modules.pop(f"alpa_dejavu.{old}")


@pytest.mark.parametrize("room", [path.parent.name for path in ROOT.glob("[a-z]*/__init__.py")])
def test_a_room_says_what_comes_in_and_what_goes_out_in_at_most_a_dozen_names(room):
    package = importlib.import_module(f"alpa_dejavu.{room}")
    assert len(getattr(package, "__all__", ())) <= 12 or room == "problem"
    assert 3 <= len(package.__doc__.strip().splitlines()) <= 9


def test_a_path_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("alpa_dejavu.playground_of_my_own")


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
