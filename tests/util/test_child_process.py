"""A process beside this one answers, and is gone when the block ends, whether it wants to or not."""

import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

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
