"""README.md says what is patched and what is tested."""

import ast
import pathlib
import re

import pytest

from alpa_stock_jax import _registry
from alpa_stock_jax._table import replace_table

ROOT = pathlib.Path(__file__).parents[2]
README = ROOT / "patches" / "README.md"


@pytest.fixture(scope="module")
def text():
    return README.read_text(encoding="utf-8")


def test_every_patch_is_in_the_table(text):
    assert replace_table(text) == text, "run `python -m alpa_stock_jax._table README.md` in patches/"
    for patch in _registry.patches():
        assert f"| `{patch.module}` | {patch.reason} |" in text


def test_every_room_with_patches_is_registered():
    folder = pathlib.Path(_registry.__file__).parent
    with_patches = {p.stem for p in folder.glob("*.py") if re.search(r"^PATCHES\b", p.read_text(), re.MULTILINE)}
    assert with_patches == {room.rpartition(".")[2] for room in _registry._ROOMS}


def test_the_tests_that_it_names_exist(text):
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 10
    for path, function in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert not function or function in functions, f"{path} has no {function}"
