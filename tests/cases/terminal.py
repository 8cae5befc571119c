"""Command lines of alpa-dejavu, run one after the other in one process on a pseudo-terminal."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

MARK = "\x1d"
"""Stands before what a command prints, and before its exit status."""
SPINNER = re.compile("[\u2800-\u28ff] ")
ACTIONS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def shown(runs, folder):
    """What each of some command lines leaves on a terminal, as lines, with its exit status.

    Args:
        runs: for each the columns of the terminal, its words, and what it has in the environment besides.
        folder: where they run.
    """
    ours, theirs = pty.openpty()
    command = [sys.executable, __file__, json.dumps(runs)]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env={**environment, "TERM": "xterm"}
    ):
        os.close(theirs)
        text = b"".join(_read(ours)).decode()
    os.close(ours)
    found = text.replace("\r\n", "\n").split(MARK)[1:]
    return [(_lines(said), int(status)) for said, status in zip(found[::2], found[1::2], strict=True)]


def _read(number):
    while True:
        try:
            read = os.read(number, 65536)
        except OSError:  # whoever wrote has ended
            return
        if not read:
            return
        yield read


def _lines(text):
    """What stays of a text: a carriage return goes back to the beginning of the line, and spinners are erased."""
    lines = (line.rpartition("\r")[2] for line in ACTIONS.sub("", text).split("\n"))
    return [line for line in lines if not SPINNER.match(line)]


def run(runs):
    from alpa_dejavu.cli.main import main

    for columns, words, environment in runs:
        fcntl.ioctl(sys.stdout.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        os.environ.update(environment)
        sys.stdout.write(MARK)
        sys.stdout.flush()
        try:
            main(words, prog_name="alpa-dejavu")
        except SystemExit as ended:
            sys.stdout.write(f"{MARK}{ended.code or 0}")
            sys.stdout.flush()
        for name in environment:
            del os.environ[name]


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
