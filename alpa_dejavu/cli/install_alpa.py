"""`alpa-dejavu install-alpa`."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess

import click

from alpa_dejavu._util.child_process import python_environment
from alpa_dejavu.cli.alpa_installation import pip_commands
from alpa_dejavu.cli.help import Command
from alpa_dejavu.cli.output import console


@click.command(
    "install-alpa",
    cls=Command,
    examples=(
        "alpa-dejavu install-alpa --dry-run",
        "alpa-dejavu install-alpa",
    ),
)
@click.option("--dry-run", is_flag=True, help="Print the two commands, and run nothing.")
def install_alpa(dry_run: bool) -> None:
    """Adds Alpa 0.2.3, Ray and our patches to this Python environment, so that plans can run.

    Planning alone needs none of them.
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
