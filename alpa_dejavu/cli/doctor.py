"""`alpa-dejavu doctor`: what is installed here, what of it runs, and what to do about the rest."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import pathlib
import platform
import subprocess
import sys
from typing import final

import click

from alpa_dejavu._util import units
from alpa_dejavu._util.child_process import python_environment
from alpa_dejavu._util.extras import installed_version
from alpa_dejavu._util.threads import usable_cores
from alpa_dejavu.cli.commands import Command, option
from alpa_dejavu.cli.interrupts import interrupts_raised
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.table import new_table
from alpa_dejavu.cli.working import working


@click.command(
    cls=Command,
    examples=("alpa-dejavu doctor", "alpa-dejavu doctor --compile"),
    rests_on="Packages are imported in processes of their own, on the CPU; no GPU is tried.",
)
@option("--compile", "compiles", is_flag=True, help="Also compile what the first plan would wait for.")
def doctor(compiles: bool) -> None:
    """Checks which packages and functions work on this machine. For the others it says what to do."""
    to = console()
    installed = new_table(("package", "version"), (), ("what for",))
    for package in versions():
        installed.add_row(package.name, package.version or "not installed", package.purpose)
    to.print(installed)
    with working("trying what runs"), interrupts_raised():
        results = checks(compiles)
    table = new_table(("what", "runs"), (), ("finding",))
    for check in results:
        table.add_row(check.what, "yes" if check.runs else "no", check.finding)
    to.print(table)
    to_do = [check.remedy for check in results if not check.runs and check.remedy]
    for n, remedy in enumerate(dict.fromkeys(to_do), 1):
        to.print(f"{n}. {remedy}")
    if not to_do:
        to.print("nothing to do")
    if not results[0].runs:
        raise click.exceptions.Exit(1)


_PACKAGES = (
    ("alpa-dejavu", "this planner"),
    ("jax", "tracing models"),
    ("jaxlib", "tracing models"),
    ("flax", "the models of Kraken"),
    ("optax", "the known models"),
    ("numba", "slicing"),
    ("highspy", "sharding, exactly"),
    ("alpa", "running plans"),
    ("alpa-stock-jax", "our patches: Alpa 0.2.3 on stock jax"),
    ("ray", "running plans"),
    ("cupy-cuda12x", "running plans on GPUs"),
)
_PATHS = f"import sys; sys.path[:] = [*filter(None, sys.path), {str(pathlib.Path(__file__).parents[2])!r}]"
"""This package is found where it is, and nothing in the current folder, which Python 3.10 puts first."""
_PLANNING = "pip install alpa-dejavu again, with all that it needs"
_ALPA = "alpa-dejavu install-alpa"
_TRIAL_S = 120.0
_COMPILING_S = 1.0
"""After so long no further loop is compiled, unless that is asked for."""


@final
@dataclasses.dataclass(frozen=True)
class Package:
    """A Python package that planning or running uses: its name, its version (None: not installed), and its purpose."""

    name: str
    version: str | None
    purpose: str


@final
@dataclasses.dataclass(frozen=True)
class Check:
    """The result of one trial of what works on this machine, as `alpa-dejavu doctor` shows it."""

    what: str  # what was tried, in a few words
    runs: bool
    finding: str  # what came out, or the last line of the error
    remedy: str = ""  # what to do where it doesn't run


def versions() -> tuple[Package, ...]:
    """Returns the versions of Python and of the packages that planning and running use."""
    python = Package("python", platform.python_version(), f"{sys.executable}")
    return (python, *(Package(name, installed_version(name), purpose) for name, purpose in _PACKAGES))


def checks(compiles: bool = False) -> tuple[Check, ...]:
    """Returns the results of trying what works here, planning first, side by side in processes of their own. All inner
    loops of slicing are compiled only if `compiles`, which takes long at first.
    """
    gpus = len(list(pathlib.Path("/proc/driver/nvidia/gpus").glob("*")))
    within = "" if compiles else f"within_s={_COMPILING_S}"
    trials = (
        (
            "planning without devices",
            "import jax, optax, highspy; print('jax', jax.__version__, 'traces')",
            _PLANNING,
        ),
        ("slicing", f"from alpa_dejavu.cli._warm_up import warm_up; print(warm_up({within}))", _PLANNING),
        ("Ray", "import ray; print('ray', ray.__version__)", _ALPA),
        ("our patches", "import alpa_stock_jax; print('they apply when alpa is imported')", _ALPA),
        (
            "our hooks into Alpa",
            "import alpa_dejavu; alpa_dejavu.install(); alpa_dejavu.uninstall(); print('its signatures are known')",
            f"{_ALPA}: the hooks know this version",
        ),
    )
    with concurrent.futures.ThreadPoolExecutor(len(trials)) as side_by_side:
        *others, patches, hooks = side_by_side.map(_tried, *zip(*trials, strict=True))
    machine = Check("this machine", True, f"{usable_cores()} CPU cores, {gpus} NVIDIA GPUs")
    return (*others, patches, _alpa(hooks), hooks, _cache(), machine)


def _alpa(hooks: Check) -> Check:
    """Returns the check of Alpa, which is imported where our hooks are tried; only if they fail it is tried alone."""
    if hooks.runs:
        return Check("Alpa", True, f"alpa {installed_version('alpa')} can be imported")
    code = "import alpa; print('alpa', alpa.__version__, 'can be imported')"
    return _tried("Alpa", code, _ALPA)


def _cache() -> Check:
    """Returns the check of the models' cache: how much is kept, and whether more can be."""
    from alpa_dejavu._util.cache_folder import FOLDER
    from alpa_dejavu.planning.search.models.model_cache import default_cache

    what = "the cache of models"
    try:
        cache = default_cache()
    except ValueError as error:
        return Check(what, False, str(error), f"{what}: {error}")
    if cache is None:
        return Check(what, True, "it is turned off")
    number, num_bytes = cache.size()
    size = f"{units.size(num_bytes)} of at most {units.size(cache.most_bytes)}"
    finding = f"{cache.folder} has {number} entries, {size}"
    why = cache.why_not_written()
    remedy = "" if why is None else f"{what}: set {FOLDER} to a folder that can be written; each plan traces its model"
    return Check(what, why is None, finding if why is None else f"{finding}, but {why}", remedy)


def _tried(what: str, code: str, remedy: str) -> Check:
    """Returns the check that runs a line of Python; on the CPU, so that no GPU's memory is taken."""
    environment = {**python_environment(), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore", "-c", f"{_PATHS}; {code}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TRIAL_S, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return Check(what, False, f"took more than {units.seconds(_TRIAL_S)}", remedy)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines() or ["no output"]
    return Check(what, done.returncode == 0, lines[-1], "" if done.returncode == 0 else f"{what}: {remedy}")
