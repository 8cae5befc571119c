"""Processes beside this one, and code that is compiled once for all of them."""

import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import alpa_dejavu
from alpa_dejavu._util.child_process import child_process


def echo(connection, word):
    try:
        while True:
            connection.send((word, connection.recv()))
    except EOFError:
        return


def stubborn(connection):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection.send("ready")
    while True:
        time.sleep(1)


def test_it_answers_and_ends_when_the_block_does():
    with child_process(echo, "said", name="echo", patience_s=600.0) as connection:
        connection.send(1)
        assert connection.recv() == ("said", 1)
        (child,) = multiprocessing.active_children()
    assert child.exitcode == 0


def fail_beside_it(children):
    with child_process(stubborn, name="stubborn", patience_s=0.2) as connection:
        assert connection.recv() == "ready"
        children += multiprocessing.active_children()
        raise KeyError("ours")


def test_what_does_not_end_is_killed_and_the_error_stays():
    children = []
    with pytest.raises(KeyError, match="ours"):
        fail_beside_it(children)
    (child,) = children
    child.join(600)
    assert child.exitcode == -signal.SIGKILL


SCRIPT = """
from alpa_dejavu._util.child_process import child_process
{ours}
print("runs")
with child_process({serve}, {arguments}name="here", patience_s=600.0) as connection:
    connection.send(2.0)
    print(connection.recv())
"""


@pytest.mark.parametrize("serve", ["test_child_process.echo", "serve"])
def test_a_script_is_not_run_again_unless_something_of_it_is_sent(serve, tmp_path):
    """It has no guard, as many a training script."""
    own = "def serve(connection):\n    connection.send(('said', connection.recv()))"
    script, paths = tmp_path / "script.py", os.pathsep.join([str(pathlib.Path(__file__).parent), *sys.path])
    ours, arguments = (own, "") if serve == "serve" else ("import test_child_process", "'said', ")
    script.write_text(SCRIPT.format(ours=ours, serve=serve, arguments=arguments))
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert ran.stdout.split("\n")[0] == "runs"
    if serve == "serve":
        assert "bootstrapping phase" in ran.stderr, "Python says what a script needs whose functions are sent"
    else:
        assert ran.stdout == "runs\n('said', 2.0)\n"
        assert ran.returncode == 0


MODULE = """
from alpa_dejavu._util.compiled import compiled

@compiled("(f8[::1],)")
def total(values):
    sum_of_all = 0.0
    for value in values:
        sum_of_all += value
    return sum_of_all
"""


def run(code, folder, **variables):
    """What a process of its own prints that imports from a folder."""
    path = os.pathsep.join([str(folder), str(Path(alpa_dejavu.__file__).parents[1])])
    left_out = {"NUMBA_CACHE_DIR", "XDG_CACHE_HOME"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {"PYTHONPATH": path, **variables}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture
def module(tmp_path):
    folder = tmp_path / "installed"
    folder.mkdir()
    (folder / "totals.py").write_text(MODULE)
    return folder


def compiled_files(folder):
    return sorted(path.suffix for path in folder.rglob("*.nb*"))


def test_numba_is_imported_by_the_first_call(module):
    code = """
        import sys
        import alpa_dejavu.slicing, totals
        print("numba" in sys.modules)
        import numpy as np
        print(totals.total(np.array([1.0, 2.0])), "numba" in sys.modules)
    """
    assert run(code, module) == ["False", "3.0", "True"]


def test_what_may_wait_is_run_uncompiled_until_there_is_much_to_do(tmp_path):
    (tmp_path / "waiting.py").write_text(MODULE.replace(',)")', ',)", may_wait=True)'))
    code = """
        import sys
        import numpy as np, waiting
        for size in (2, 299_000, 300_000, 2):
            print(waiting.total(np.arange(float(size))) == size * (size - 1) / 2, "numba" in sys.modules)
    """
    assert run(code, tmp_path) == ["True", "False", "True", "False", "True", "True", "True", "True"]


CALL = "import numpy as np, totals; print(totals.total(np.array([1.0, 2.5])))"


def test_compiled_code_is_kept_beside_the_module(module):
    assert run(CALL, module) == ["3.5"]
    assert compiled_files(module) == [".nbc", ".nbi"]
    kept = {path: path.stat().st_mtime_ns for path in module.rglob("*.nb*")}
    assert run(CALL, module) == ["3.5"]
    assert {path: path.stat().st_mtime_ns for path in module.rglob("*.nb*")} == kept


def test_an_installation_that_cannot_be_written_keeps_it_with_the_user_or_not_at_all(module, tmp_path):
    # A file where the folder would be: permissions don't stop a superuser.
    (module / "__pycache__").write_text("")
    cache = tmp_path / "cache"
    assert run(CALL, module, XDG_CACHE_HOME=str(cache)) == ["3.5"]
    assert compiled_files(cache) == [".nbc", ".nbi"]
    occupied = tmp_path / "occupied"
    occupied.write_text("")
    said = run(f"import logging, sys; logging.basicConfig(stream=sys.stdout)\n{CALL}", module,
               XDG_CACHE_HOME=str(occupied), HOME=str(occupied))  # fmt: skip
    assert said[-1] == "3.5"
    assert said.count("NUMBA_CACHE_DIR") == 1
    assert compiled_files(tmp_path / "installed") == []


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_what_is_kept_broken_is_compiled_anew(module, suffix):
    assert run(CALL, module) == ["3.5"]
    (broken,) = module.rglob(f"*{suffix}")
    broken.write_bytes(broken.read_bytes()[:20])
    assert run(CALL, module) == ["3.5"]
