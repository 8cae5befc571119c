"""Patches are applied when Alpa is imported, say what doesn't fit, and are installed, listed and named."""

import ast
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import types
import zipfile

import numpy as np
import pytest
import ray
from alpa.util import maybe_numba_jit
from hypothesis import given
from hypothesis import strategies as st

from alpa_stock_jax import _hook, _ray_version, _registry, environment
from alpa_stock_jax._frozen_dict import FrozenDict
from alpa_stock_jax._patch import Patch, PatchError
from alpa_stock_jax._registry import apply_before
from alpa_stock_jax._table import replace_table
from alpa_stock_jax.names import PATCHES

_INSTALLED = "import alpa_stock_jax._hook as hook; hook.install(); "


def _run(code: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", _INSTALLED + code]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=6000).stdout.strip()


@pytest.mark.parametrize(
    "first",
    [
        "import jax, flax.linen, optax, numpy",
        "import ray, jaxlib.xla_extension",
        "from jax.interpreters import pxla; from jax.lib import xla_bridge",
        "from jax import xla; from jax.experimental.pjit import PartitionSpec",
    ],
)
def test_the_order_of_imports_does_not_matter(first):
    code = f"{first}; import alpa; from alpa.util import jaxpr_to_hlo as f; print(f.__module__)"
    assert _run(code) == "alpa_stock_jax.lowering"


def test_nothing_is_loaded_or_changed_without_alpa():
    code = "import jax, sys; print(hasattr(jax, 'linear_util'), [m for m in sys.modules if m.startswith('alpa')])"
    assert _run(code) == "False ['alpa_stock_jax', 'alpa_stock_jax._hook', 'alpa_stock_jax._old_names']"


def test_the_hook_imports_nothing_that_is_slow():
    code = "import sys; sys.path[:0] = [{!r}]; before = set(sys.modules); import alpa_stock_jax._hook; "
    code += "print(sorted(m for m in set(sys.modules) - before if not m.startswith('alpa_stock_jax')))"
    folder = _hook.__file__.rsplit("/", 2)[0]
    out = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code.format(folder)], check=True, capture_output=True, text=True, timeout=600
    )
    assert out.stdout.strip() in ("[]", "['__future__']")


def test_alpas_own_jaxlib_is_left_alone():
    code = (
        "import jaxlib.xla_extension as xe; xe.get_alpa_jaxlib_version = lambda: '0.2.2'\n"
        "try:\n import alpa\nexcept ImportError as error:\n print(error)"
    )
    assert "cannot import name" in _run(code)  # stock jax without patches


def test_a_patch_that_does_not_fit_stops_the_import():
    code = (
        "import jax._src.sharding_impls as module; del module.get_array_mapping\n"
        "try:\n import alpa\nexcept ImportError as error:\n print(type(error).__name__, error)"
    )
    out = _run(code)
    assert out.startswith("PatchError")
    assert "get_array_mapping" in out
    assert "jax 0.4.30" in out


def _module(**names):
    module = types.ModuleType("some.module")
    vars(module).update(names)
    return module


def _patch(**guards):
    return Patch(module="some.module", reason="twice is enough", apply=lambda module: None, **guards)


def test_what_is_there_with_its_signature_fits():
    _patch(expects={"f": ("a", "b"), "f.__name__": None}).check(_module(f=lambda a, b: a))


def test_a_missing_attribute_is_named_with_the_patch_and_the_versions():
    wanted = r"'twice is enough'.*some\.module\.g doesn't exist.*alpa 0\.2\.3, jax 0\.4\.30"
    with pytest.raises(PatchError, match=wanted):
        _patch(expects={"g": None}).check(_module())


def test_another_signature_is_named_with_what_was_expected():
    with pytest.raises(PatchError, match=r"some\.module\.f takes \('a', 'c'\), expected \('a', 'b'\)"):
        _patch(expects={"f": ("a", "b")}).check(_module(f=lambda a, c: a))


@pytest.mark.parametrize("name", ["no_such_package.x", "os.path.no_such_function"])
def test_what_a_patch_uses_elsewhere_must_exist(name):
    with pytest.raises(PatchError, match=name):
        _patch(uses=(name,)).check(_module())


def test_a_module_is_found_behind_a_function_of_its_name():
    # ray.util.placement_group is a module and, as an attribute of ray.util, a function
    _patch(uses=("ray.util.placement_group.placement_group_table",)).check(_module())


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


HOOK = "alpa_stock_jax.pth"
SOURCES = pathlib.Path(__file__).parents[2] / "patches"
BUILD = "import setuptools.build_meta as m, sys; print(getattr(m, sys.argv[1])(sys.argv[2]))"


def _build(kind, folder):
    """Builds a wheel from a copy of the sources; what is in it, by name."""
    ignore = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    source = shutil.copytree(SOURCES, folder / "patches", ignore=ignore)
    command = [sys.executable, "-c", BUILD, kind, str(folder)]
    built = subprocess.run(command, cwd=source, check=True, capture_output=True, text=True, timeout=600)
    with zipfile.ZipFile(folder / built.stdout.split()[-1]) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


@pytest.mark.parametrize("kind", ["build_wheel", "build_editable"])
def test_the_wheel_installs_the_hook_and_every_module_and_nothing_else(tmp_path, kind):
    files = _build(kind, tmp_path)
    assert files[HOOK] == (SOURCES / HOOK).read_bytes()
    (record,) = [content.decode() for name, content in files.items() if name.endswith(".dist-info/RECORD")]
    assert record.count(f"{HOOK},sha256=") == 1
    if kind == "build_wheel":
        modules = {f"alpa_stock_jax/{path.name}" for path in (SOURCES / "alpa_stock_jax").glob("*.py")}
        assert {name for name in files if ".dist-info/" not in name} == {HOOK, *modules}


apply_before()


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.module)
def test_every_name_stands_for_what_it_says(patch):
    import importlib
    import pkgutil

    module = importlib.import_module(patch.module)
    sources = getattr(patch.apply, "keywords", {}).get("sources", {})
    assert sources or patch.module == "jax.experimental"
    for name, source in sources.items():
        assert getattr(module, name) is pkgutil.resolve_name(source)


@given(st.dictionaries(st.text(), st.integers()))
def test_a_frozen_dictionary_is_one_that_can_be_hashed(contents):
    frozen = FrozenDict(contents)
    assert dict(frozen) == contents
    assert frozen == FrozenDict(dict(reversed(contents.items())))
    assert hash(frozen) == hash(FrozenDict(dict(reversed(contents.items()))))
    assert pickle.loads(pickle.dumps(frozen)) == frozen


@pytest.mark.parametrize(
    ("platforms", "has_driver", "installed", "usable"),
    [
        ("", True, True, True),
        ("cuda,cpu", True, True, True),
        ("cpu", True, True, False),
        ("", False, True, False),
        ("", True, False, False),
    ],
)
def test_a_gpu_needs_a_driver_a_plugin_and_permission(monkeypatch, platforms, has_driver, installed, usable):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(environment, "_is_installed", lambda name: installed)
    assert environment._can_use_gpu(has_driver) is usable


def test_importing_alpa_imports_no_numba():
    code = "import alpa, sys; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_functions_are_compiled_at_their_first_call():
    offset = 3

    @maybe_numba_jit
    def add(values):
        total = 0
        for value in values:
            total += value
        return total + offset

    assert add(np.arange(4)) == 9
    assert add(np.arange(5)) == 13


@pytest.mark.parametrize("version", ["2.10.0", "2.31.1", "2.60.0", "2.60.0rc1", ray.__version__])
def test_versions_in_the_range_fit(version):
    _ray_version.check_version(version)


@pytest.mark.parametrize("version", ["1.13.0", "2.9.3", "2.61.0", "3.0.0.dev0", "unknown"])
def test_others_are_refused_with_the_remedy(version):
    with pytest.raises(RuntimeError, match=rf"Ray {version} doesn't fit: .* pip install \"ray>=2.10,<2.61\""):
        _ray_version.check_version(version)


def test_installing_twice_leaves_one_hook():
    code = "hook.install(); import sys; print(sum(type(f).__name__ == 'AlpaFinder' for f in sys.meta_path))"
    assert _run(code) == "1"


def test_looking_for_alpa_does_not_apply_patches():
    code = "import importlib.util, sys; importlib.util.find_spec('alpa'); print('jax' in sys.modules)"
    assert _run(code) == "False"


def test_a_name_that_nobody_patches_costs_next_to_nothing():
    finder, calls = _hook.AlpaFinder(), []
    sys.setprofile(lambda frame, event, _: calls.append((event, frame.f_code.co_name)))
    try:
        found = finder.find_spec("numpy.linalg")
    finally:
        sys.setprofile(None)
    assert found is None
    assert [name for event, name in calls if event == "call"] == ["find_spec"], "no other function of Python's"
    assert sum(event == "c_call" for event, _ in calls) <= 2, "startswith, and the end of the profile"


def test_source_and_loader_of_a_patched_module_are_its_own():
    code = "import alpa.util as u, inspect; print(type(u.__loader__).__name__, u.__spec__.loader is u.__loader__, "
    code += "'class OrderedSet' in inspect.getsource(u))"
    assert _run(code) == "SourceFileLoader True True"
