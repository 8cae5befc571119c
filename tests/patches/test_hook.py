"""Patches are applied when Alpa is imported: in any order, by the .pth file, and not where nobody needs them."""

import subprocess
import sys

import pytest

from alpa_stock_jax import _hook

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
