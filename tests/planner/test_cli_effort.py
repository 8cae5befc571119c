"""What takes over ten seconds says so before it starts."""

import pytest
from click.testing import CliRunner

from alpa_dejavu import planning
from alpa_dejavu.cli.effort import announce, planning_s
from alpa_dejavu.cli.main import main


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--model gpt-125m --batch 32", ""),
        ("--model gpt-125m --batch 32 --hosts 64", "planning gpt-125m on 64 x p3.16xlarge takes about"),
        ("--model gpt-125m --batch 32 --hosts 1000", "takes about 4 hours; Ctrl-C ends it"),
        ("--model wresnet-1b --batch 32", "takes about 40 seconds; Ctrl-C ends it"),
        ("--model gpt-125m --batch 32 --layers 256", "takes about"),
        ("--model gpt-125m --batch 65536 --micro-batches 65536", "takes about 10 seconds"),
    ],
)
def test_long_planning_is_announced_before_it_starts(more, said, monkeypatch):
    def plan_model(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(planning, "plan_model", plan_model)
    result = CliRunner().invoke(main, ["plan", "--cluster", "p3.16xlarge", *more.split()])
    assert (result.exit_code, result.stdout) == (130, "")
    assert said in result.stderr
    lines = result.stderr.splitlines()
    assert lines[-1] == "Interrupted"
    assert len(lines) == 1 + bool(said)


def test_more_of_anything_takes_no_less():
    least = planning_s("gpt-125m", 1, None, 1, "dynamic")
    for more in (("gpt-125m", 2, None, 1, "dynamic"), ("gpt-125m", 1, 96, 1, "dynamic"), ("m:f", 1, None, 1, "mcmc")):
        assert planning_s(*more) > least


def test_what_is_short_is_not_announced(capsys):
    announce("measuring", 9.9)
    assert capsys.readouterr() == ("", "")
    announce("measuring", 150.0)
    assert capsys.readouterr() == ("", "measuring takes about 2 minutes; Ctrl-C ends it\n")
