"""The commands that add Alpa and our patches to the Python environment of this package."""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
import sys

import alpa_dejavu

__all__ = ["ALPA", "pip_commands"]

ALPA = "alpa==0.2.3"
_PATCHES = "alpa-stock-jax"
_ROOT = pathlib.Path(alpa_dejavu.__file__).parent
Command = list[str]


def pip_commands() -> tuple[Command, Command]:
    """Returns the two calls of pip: our patches with all that Alpa runs with, then Alpa without its dependencies.

    Alpa's own metadata asks for jax==0.3.22 from a fork that is gone. What it runs with is this package's extra "alpa".

    Raises:
        ValueError: this package was neither installed from a wheel nor is it in a checkout, so the patches aren't
            there.
    """
    pip = [sys.executable, "-m", "pip", "install"]
    needs = [need for need in _extra("alpa") if not need.startswith(_PATCHES)]
    return [*pip, str(_patches()), *needs], [*pip, "--no-deps", ALPA]


def _extra(name: str) -> list[str]:
    """Returns the requirements of an extra of this package, as they stand in its metadata."""
    found = []
    for line in importlib.metadata.requires("alpa-dejavu") or ():
        need, _, marker = line.partition(";")
        if re.fullmatch(rf"""\s*extra\s*==\s*["']{name}["']\s*""", marker):
            found.append(need.strip())
    return found


def _patches() -> pathlib.Path:
    """Returns what our patches are installed from: the wheel inside this package, or their folder in a checkout."""
    wheels = sorted((_ROOT / "wheels").glob("*.whl"))
    folder = _ROOT.parent / "patches"
    if wheels:
        return wheels[-1]
    if (folder / "setup.py").is_file():
        return folder
    raise ValueError(f"alpa_dejavu is at {_ROOT}, but must be from a wheel or in a checkout, which hold the patches; "
                     "install it by pip from a wheel of this project")  # fmt: skip
