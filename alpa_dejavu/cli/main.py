"""`alpa-dejavu`: the planner on the command line.

It exits with one of five codes:

- 0: what was asked for is done; or, once an interrupt has stopped planning, the best plan so far.
- 1: what the user gave is wrong, a file or standard output can't be written, or a model function fails.
- 2: the command line is wrong.
- 3: nothing fits; or the plan that `estimate` or `import` was given doesn't, and all that was asked for is written.
- 130: it was interrupted, before there was a plan or again.

Errors are told on standard error, in a line but for the traceback of a model function.
"""

from __future__ import annotations

import atexit
import gc

import click

from alpa_dejavu.cli.commands import LateCommands, ReportingGroup

# In the order of their use, in which `--help` lists them, with the first sentences of their help.
_COMMANDS = LateCommands({
    "install-alpa": "Adds Alpa 0.2.3, Ray and our patches to this environment.",
    "doctor": "Checks which packages and functions work on this machine.",
    "models": "Lists the known models with their parameters and blocks.",
    "machines": "Lists the known machines with their GPUs, rates and prices.",
    "plan": "Finds the best plan for a model on a cluster.",
    "compare": "Says which cluster trains a model soonest and cheapest.",
    "import": "Reads another framework's configuration and predicts its step.",
    "explain": "Says what bounds a plan's step, and what would help.",
    "estimate": "Predicts the step time and memory of a given plan.",
    "why": "Says why a measured training step takes as long as it does.",
    "diff": "Says how two plans differ, and what each difference costs.",
    "spend": "Says what to spend devices on: batch, more starts, or OptEx.",
    "export": "Writes a plan as another runtime's or a simulator's files.",
    "profile": "Runs a plan on Ray's cluster, and compares with predictions.",
    "history": "Shows past runs, and how they correct predictions.",
    "calibrate": "Measures Ray's cluster, and writes a calibration.",
    "calibration": "Shows a calibration, or converts Alpa's profiling database.",
    "replan": "Plans again for a changed cluster, and says which data move.",
    "playground": "Simulates distributed training: time and convergence together.",
    "resilience": "Says which parts of a trained network may fail without harm.",
})  # fmt: skip

# The process ends: what is left needn't be looked through for what could be collected.
atexit.register(gc.freeze)


def _show_version(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        from alpa_dejavu._util.extras import installed_version

        click.echo(f"alpa-dejavu, version {installed_version('alpa-dejavu') or 'from a checkout'}")
        context.exit()


@click.group(cls=ReportingGroup, commands=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
              help="Show the version and exit.")  # fmt: skip
def main() -> None:
    """Plans distributed training, without devices; runs plans in Alpa, and writes them for other frameworks.

    The exit code is 1 for an error, 2 for a wrong command line, 3 where no plan, or the given one, fits into memory.
    """
