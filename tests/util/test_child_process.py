"""A process beside this one answers, and is gone when the block ends, whether it wants to or not."""

import multiprocessing
import signal
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
