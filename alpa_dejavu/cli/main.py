"""`alpa-dejavu`: the planner on the command line.

It exits with one of four codes:

- 0: what was asked for is done.
- 1: no plan fits, what the user gave is wrong, a file or standard output can't be written, or a model function fails.
- 2: the command line is wrong.
- 130: it was interrupted.

Errors are told on standard error, in a line but for the traceback of a model function.
"""

from __future__ import annotations

import atexit
import gc

import click

from alpa_dejavu._util.extras import installed_version
from alpa_dejavu.cli.calibrate import calibrate
from alpa_dejavu.cli.calibration import calibration
from alpa_dejavu.cli.commands import ReportingGroup
from alpa_dejavu.cli.compare import compare
from alpa_dejavu.cli.diff import diff
from alpa_dejavu.cli.doctor import doctor
from alpa_dejavu.cli.estimate import estimate
from alpa_dejavu.cli.explain import explain
from alpa_dejavu.cli.export import export
from alpa_dejavu.cli.history import history
from alpa_dejavu.cli.import_ import import_
from alpa_dejavu.cli.install_alpa import install_alpa
from alpa_dejavu.cli.models import models
from alpa_dejavu.cli.plan import plan
from alpa_dejavu.cli.playground import playground
from alpa_dejavu.cli.profile import profile
from alpa_dejavu.cli.replan import replan
from alpa_dejavu.cli.resilience import resilience
from alpa_dejavu.cli.spend import spend

__all__ = ["main"]


# The process ends: what is left needn't be looked through for what could be collected.
atexit.register(gc.freeze)


@click.group(cls=ReportingGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(installed_version("alpa-dejavu") or "from a checkout", prog_name="alpa-dejavu")
def main() -> None:
    """Plans parallel training for Alpa, with or without devices."""


# In the order of their use, in which `--help` lists them.
for _command in (
    install_alpa, doctor, models, plan, compare, import_, explain, estimate, diff, spend, export, profile, history,
    calibrate, calibration, replan, playground, resilience,
):  # fmt: skip
    main.add_command(_command)
