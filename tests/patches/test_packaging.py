"""The hook's .pth file is installed beside the package, by wheels and by editable installs."""
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

HOOK = "alpa_stock_jax.pth"


PATCHES = pathlib.Path(__file__).parents[2] / "patches"


BUILD = "import setuptools.build_meta as m, sys; print(getattr(m, sys.argv[1])(sys.argv[2]))"


def _build(kind, folder):
    """Builds a wheel from a copy of the sources; what is in it, by name."""
    ignore = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    source = shutil.copytree(PATCHES, folder / "patches", ignore=ignore)
    command = [sys.executable, "-c", BUILD, kind, str(folder)]
    built = subprocess.run(command, cwd=source, check=True, capture_output=True, text=True, timeout=600)
    with zipfile.ZipFile(folder / built.stdout.split()[-1]) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


@pytest.mark.parametrize("kind", ["build_wheel", "build_editable"])
def test_the_wheel_installs_the_hook(tmp_path, kind):
    files = _build(kind, tmp_path)
    assert files[HOOK] == (PATCHES / HOOK).read_bytes()
    (record,) = [content.decode() for name, content in files.items() if name.endswith(".dist-info/RECORD")]
    assert record.count(f"{HOOK},sha256=") == 1


def test_every_module_is_in_the_wheel_and_nothing_else_is_installed(tmp_path):
    installed = {name for name in _build("build_wheel", tmp_path) if ".dist-info/" not in name}
    modules = {f"alpa_stock_jax/{path.name}" for path in (PATCHES / "alpa_stock_jax").glob("*.py")}
    assert installed == {HOOK, *modules}
