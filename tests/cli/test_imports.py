"""What a command imports: what it uses, and what takes long to import only once something is shown."""

import os
import pty
import subprocess
import sys

import pytest

from alpa_dejavu.cli.main import main

HEAVY = "numpy", "scipy", "numba", "jax", "pydantic", "plotly", "pandas", "sklearn", "yaml", "tqdm"
HELP = "import click; from alpa_dejavu.cli.main import main; main(['--help'], standalone_mode=False)"
PARSED = """
import click
from alpa_dejavu.cli.main import main
with click.Context(main, info_name="alpa-dejavu"):
    main.commands["plan"].make_context("plan", "--model gpt-1.3b --cluster p3.16xlarge --batch 8".split())
"""


def modules_after(code):
    ended = f"try:\n    exec({code!r})\nexcept SystemExit:\n    pass\nimport sys; print(); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", ended], capture_output=True, text=True, check=True)
    return set(run.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(("code", "most"), [(HELP, 12), (PARSED, 32)])
def test_nothing_heavy_is_imported_before_a_command_shows_something(code, most):
    modules = modules_after(code)
    assert not modules & set(HEAVY)
    own = [name for name in modules if name.partition(".")[0] == "alpa_dejavu"]
    assert len(own) <= most, sorted(own)


def test_planning_imports_neither_jax_nor_what_fits_and_draws():
    imports = "import alpa_dejavu.planning.by_name, alpa_dejavu.planning.changed.kept, alpa_dejavu.cli.tables"
    modules = modules_after(imports)
    assert not modules & {*HEAVY} - {"numpy"}


def test_a_command_is_imported_once_and_no_other_name_is_one():
    assert main.commands["plan"] is main.commands["plan"]
    assert "sys" not in main.commands
    assert main.commands.get("_warm-up") is None


def test_on_a_terminal_a_plan_shows_what_it_does_before_heavy_imports():
    ours, theirs = pty.openpty()
    code = (
        "import os, sys\n"
        "from alpa_dejavu.cli import working\n"
        "def first(self):\n"
        f"    print([name for name in {HEAVY} if name in sys.modules], flush=True)\n"
        "    os._exit(0)\n"
        "working._ShownWork.text = first\n"
        "from alpa_dejavu.cli.main import main\n"
        "main('plan --model gpt-1.3b --cluster p3.16xlarge --batch 8'.split())\n"
    )
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, text=True, check=True)
    os.close(theirs)
    os.close(ours)
    assert run.stdout == "[]\n"
