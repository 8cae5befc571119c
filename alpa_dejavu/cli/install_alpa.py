"""`alpa-dejavu install-alpa`: adds Alpa and our patches to the Python environment of this package."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pathlib
import re
import shlex
import subprocess
import sys

import click

import alpa_dejavu
from alpa_dejavu._util.child_process import python_environment
from alpa_dejavu.cli.commands import Command, option
from alpa_dejavu.cli.output import console


@click.command("install-alpa", cls=Command, examples=("alpa-dejavu install-alpa --dry-run", "alpa-dejavu install-alpa"))
@option("--dry-run", is_flag=True, help="Print the two commands, and run nothing.")
def install_alpa(dry_run: bool) -> None:
    """Adds Alpa 0.2.3, Ray and our patches to this environment.

    Plans run with them; planning alone needs none of them.
    """
    commands = pip_commands()
    to = console()
    if not dry_run and importlib.util.find_spec("pip") is None:
        raise ValueError("this Python environment is without pip, but install-alpa must have it; run `python -m "
                         "ensurepip`, or give the commands of `install-alpa --dry-run` to your installer")  # fmt: skip
    for command in commands:
        click.echo(shlex.join(command))  # one line, which can be copied
        if not dry_run and (code := subprocess.run(command, env=python_environment(), check=False).returncode):
            raise ValueError(f"pip ended with {code}, but must end with 0; mend what it says above, and try again")
    if not dry_run:
        to.print("Alpa is installed. `alpa-dejavu doctor` tries what runs.")


ALPA = "alpa==0.2.3"
_PATCHES = "alpa-stock-jax"
_ROOT = pathlib.Path(alpa_dejavu.__file__).parent


def pip_commands() -> tuple[list[str], list[str]]:
    """Returns the two calls of pip: our patches with all that Alpa runs with, then Alpa without its dependencies.

    Alpa's own metadata asks for jax==0.3.22 from a fork that is gone. Raises ValueError where the patches aren't.
    """
    pip = [sys.executable, "-m", "pip", "install"]
    needs = [need for need in _extra("alpa") if not need.startswith(_PATCHES)]
    return [*pip, str(_patches()), *needs], [*pip, "--no-deps", ALPA]


def _extra(name: str) -> list[str]:
    """Returns the requirements of an extra of this package, as they stand in its metadata."""
    needs = []
    for line in importlib.metadata.requires("alpa-dejavu") or ():
        need, _, marker = line.partition(";")
        if re.fullmatch(rf"""\s*extra\s*==\s*["']{name}["']\s*""", marker):
            needs.append(need.strip())
    return needs


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
