"""`alpa-dejavu`: the planner on the command line.

It exits with one of four codes:

- 0: what was asked for is done; or, once an interrupt has stopped planning, the best plan so far.
- 1: no plan fits, what the user gave is wrong, a file or standard output can't be written, or a model function fails.
- 2: the command line is wrong.
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
    "install-alpa": "Adds Alpa 0.2.3, Ray and our patches to this Python environment, so that plans can run.",
    "doctor": "Says which packages are installed, which functions work on this machine, and what to do about the "
    "others.",
    "models": "Lists the models that are known by name, with their parameters and blocks.",
    "machines": "Lists the machine types that are known by name, with their GPUs, rates and prices.",
    "plan": "Finds the best plan for a model on a cluster, without devices.",
    "compare": "Says which cluster trains a model soonest and cheapest, by each way to keep less in memory.",
    "import": "Reads the plan in another runtime's configuration, and predicts its step.",
    "explain": "Says what bounds a plan's step time, what would help, and what to buy or to speed up first.",
    "estimate": "Predicts the step time and memory of a given plan.",
    "diff": "Says in what two plans differ, and how many seconds of a step each difference costs.",
    "spend": "Says what a cluster's devices are best spent on: larger batches, more starts, or OptEx.",
    "export": "Writes a plan as the files that another runtime, or a simulator, reads.",
    "profile": "Runs a plan on the cluster that Ray has, and shows the measured times beside the predicted ones.",
    "history": "Shows past runs of plans, and how they correct the predictions for new plans.",
    "calibrate": "Measures links, the starts of computations and the memory of hosts of the cluster that Ray has, and "
    "writes a calibration, which later plans are made by.",
    "calibration": "Shows a calibration (what was measured of devices and links), or converts a profiling database of "
    "Alpa's.",
    "replan": "Plans again for a cluster that has changed, without tracing the model, and says which parameters must "
    "move.",
    "playground": "Simulates distributed training on this machine, time and convergence together.",
    "resilience": "Says which parts of a network may fail: the function returns (apply_fn, params, (inputs, targets)).",
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
    """Plans parallel training for Alpa, with or without devices."""
