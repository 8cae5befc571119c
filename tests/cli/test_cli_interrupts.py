"""Interrupts end the command line with one line and the code 130, wherever it is, and leave no half of a file."""

import os
import pty
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from alpa_dejavu.cli import main
from alpa_dejavu.cli.interrupts import end_at_once, interrupts_raised
from alpa_dejavu.cli.ray_cluster import ray_cluster
from alpa_dejavu.plans.plan_file import read_plan

INTERRUPT = "os.kill(os.getpid(), signal.SIGINT)"


def process(code, *words, before="default_int_handler", **options):
    """The command line in a process of its own, after some code, and with a handler of interrupts from before."""
    program = (
        f"import os, pathlib, runpy, signal, sys\nsignal.signal(signal.SIGINT, signal.{before})\n{code}\n"
        "try: runpy.run_module('alpa_dejavu', run_name='__main__')\n"
        "finally: print(signal.getsignal(signal.SIGINT))\n"
    )
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 120, **options}
    return subprocess.run([sys.executable, "-c", program, *map(str, words)], **given)


def explaining(code, path="plan.json", **options):
    """`explain` of a plan's file with this code in place of reading that."""
    lines = "".join(f"    {line}\n" for line in code.splitlines())
    reading = f"import alpa_dejavu.cli.explain as explain\ndef read_plan(path):\n{lines}explain.read_plan = read_plan"
    return process(reading, "explain", path, **options)


def interrupted(done):
    return (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted\n")


@pytest.mark.parametrize(
    ("module", "command"),
    [("numpy", "plan"), ("click", "plan"), ("alpa_dejavu.cli.plan", "plan"), ("alpa_dejavu.cli.doctor", "doctor")],
)
def test_while_it_is_imported(module, command):
    code = (
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: {INTERRUPT}\n"
        "sys.meta_path.insert(0, Interrupts())\n"
    )
    assert interrupted(process(code, command, "--help"))


@pytest.mark.parametrize(
    "code",
    [
        INTERRUPT,
        f"class Gone:\n    def __del__(self): {INTERRUPT}\nGone()",
        f"try: {INTERRUPT}\nexcept BaseException: pass",
        f"try: {INTERRUPT}\nfinally: print('an hour later')",
    ],
    ids=["anywhere", "where Python drops exceptions", "where somebody catches all", "where much would come after"],
)
def test_while_it_works(code):
    assert interrupted(explaining(code))


def test_what_was_started_is_ended_before_the_command_is():
    before = signal.signal(signal.SIGINT, end_at_once)
    try:
        for block in (interrupts_raised, lambda: ray_cluster(None)):
            with pytest.raises(KeyboardInterrupt), block():
                signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is end_at_once
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with interrupts_raised():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_one_that_is_raised_is_a_line_and_130(monkeypatch, tmp_path):
    def raises(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("alpa_dejavu.cli.explain.read_plan", raises)
    result = CliRunner().invoke(main.main, ["explain", str(tmp_path / "plan.json")])
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "Interrupted\n")


MODEL = """
import jax

def small(batch_size):
    def step(state, batch):
        gradients = jax.grad(lambda weights: (jax.numpy.tanh(batch @ weights[0]) @ weights[1]).mean())(state)
        return jax.tree.map(jax.numpy.subtract, state, gradients)

    return step, ([jax.ShapeDtypeStruct((8, 8), "float32")] * 2, jax.ShapeDtypeStruct((batch_size, 8), "float32"))
"""


def planning(folder, times, has_plan="has_plan"):
    """`plan` of a small model that is interrupted so many times once a candidate is priced."""
    (folder / "small_model.py").write_text(MODEL)
    price = (
        "from alpa_dejavu._util.search_watch import SearchWatch\n"
        "price = SearchWatch.price\n"
        "def interrupted(watch, has_plan, left, anew):\n"
        f"    price(watch, {has_plan}, left, anew)\n"
        f"    for _ in range({times}): {INTERRUPT}\n"
        "SearchWatch.price = interrupted\n"
    )
    words = "plan --model small_model:small --cluster p3.16xlarge --hosts 2 --batch 32 --contingencies --json plan.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(folder)])}
    return process(price, *words.split(), cwd=folder, env=environment, timeout=600)


def test_one_interrupt_gives_the_best_plan_so_far(tmp_path):
    done = planning(tmp_path, 1)
    assert done.returncode == 0, done.stderr
    assert "stopped early: 1 of about" in done.stdout
    assert "a step" in done.stdout.split("stopped early")[1]
    assert "nothing fits without" not in done.stdout
    assert done.stderr.splitlines()[-1] == "Stopping with the best plan so far; interrupt again to end without it"
    assert read_plan(tmp_path / "plan.json").notes


@pytest.mark.parametrize(("times", "has_plan"), [(2, "has_plan"), (1, "False")])
def test_a_second_interrupt_or_one_without_a_plan_ends_the_command(tmp_path, times, has_plan):
    done = planning(tmp_path, times, has_plan)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.splitlines()[-1] == "Interrupted"
    assert not (tmp_path / "plan.json").exists()


def test_while_a_file_is_written(tmp_path):
    (tmp_path / "plan.json").write_text("before")
    code = (
        "from alpa_dejavu._util.json_file import write_whole\n"
        f"os.fsync = lambda _: {INTERRUPT}\n"
        "write_whole(pathlib.Path(path), 'after')\n"
    )
    assert interrupted(explaining(code, tmp_path / "plan.json"))
    assert (tmp_path / "plan.json").read_text() == "before"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_on_a_terminal_the_line_is_below_what_was_typed_and_the_cursor_is_shown():
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    done = explaining(INTERRUPT, stderr=theirs, env=environment)
    os.close(theirs)
    assert done.returncode == 130
    assert os.read(ours, 1000) == b"\x1b[?25h\r\nInterrupted\r\n"
    os.close(ours)


def test_who_ignores_interrupts_goes_on_ignoring_them():
    done = process(INTERRUPT, "--version", before="SIG_IGN")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, str(signal.SIG_IGN))
