"""What takes over ten seconds says so before it starts."""

import types

import pytest
from click.testing import CliRunner

from alpa_dejavu import planning
from alpa_dejavu.cli.effort import announce, planning_s
from alpa_dejavu.cli.main import main
from alpa_dejavu.planning.kept import kept_path
from alpa_dejavu.plans.plan_file import write_plan
from alpa_dejavu.problem import PricedBy
from alpa_dejavu.testing import example_cluster
from plans import example_plan, hardware, stage


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--model gpt-125m --batch 32", ""),
        ("--model gpt-125m --batch 32 --hosts 64", "planning gpt-125m on 64 x p3.16xlarge takes about"),
        ("--model gpt-125m --batch 32 --hosts 1000", "takes about 2 hours; Ctrl-C ends it"),
        ("--model wresnet-1b --batch 32", "takes about 40 seconds; Ctrl-C ends it"),
        ("--model gpt-125m --batch 32 --layers 256", "takes about"),
        ("--model gpt-125m --batch 32 --layers 4 --slicer exhaustive", "takes about 2 minutes"),
        ("--model gpt-125m --batch 32 --layers 8 --slicer exhaustive", ""),
        ("--model gpt-125m --batch 32 --hosts 8 --slicer gradient", "takes about"),
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


def plan_file(path, layers=8, hosts=1, kept=True, **changes):
    """A plan of two stages; what is beside it isn't what is kept of it."""
    stages = (stage((0, layers // 2 - 1)), stage((layers // 2, layers - 1)))
    write_plan(example_plan(**({"stages": stages, "hardware": hardware(hosts)} | changes)), path)
    if kept:
        kept_path(path).write_bytes(b"")
    return path


@pytest.fixture
def said(monkeypatch):
    """Runs a command line that is interrupted where its work begins; what it said until then."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    for place in (
        "planning.replanning.replan", "planning.kept.read_kept", "report.explanation.explain",
        "planning.plan_estimate.PlanEstimator",
    ):  # fmt: skip
        monkeypatch.setattr(f"alpa_dejavu.{place}", interrupted)

    def run(*words):
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert (result.exit_code, result.stdout) == (130, "")
        *lines, last = result.stderr.splitlines()
        assert last == "Interrupted"
        return lines

    return run


def test_estimates_of_many_layers_are_announced(said, tmp_path):
    path = tmp_path / "plan.json"
    assert said("estimate", plan_file(path)) == []
    assert said("estimate", plan_file(path, 1000)) == [f"estimating {path} takes about 40 seconds; Ctrl-C ends it"]


def test_explanations_by_what_is_kept_for_many_hosts_are_announced(said, tmp_path):
    path, alone = tmp_path / "plan.json", tmp_path / "alone.json"
    assert said("explain", plan_file(path)) == []
    assert said("explain", plan_file(path, 48, 64)) == [f"explaining {path} takes about 80 seconds; Ctrl-C ends it"]
    assert said("explain", plan_file(path, 48, 16, num_micro_batches=1)) == []
    assert said("explain", plan_file(alone, 48, 64, kept=False)) == []


def test_planning_again_for_many_hosts_is_announced(said, tmp_path, monkeypatch):
    kept = types.SimpleNamespace(cluster=example_cluster(2))
    monkeypatch.setattr("alpa_dejavu.planning.kept.read_kept", lambda _: kept)
    path, slow = tmp_path / "plan.json", ("--slow", "p3.16xlarge-0=2")
    line = f"planning {path} again takes about 40 seconds; Ctrl-C ends it"
    assert said("replan", plan_file(path), *slow) == []
    assert said("replan", plan_file(path, 48, 64), *slow) == [line]
    assert said("replan", plan_file(path, 48), "--cluster", "p3.16xlarge", "--hosts", 64) == [line]
    assert said("replan", plan_file(path, 48, 64, priced_by=PricedBy(micro_batches=4)), *slow) == []
    assert said("replan", plan_file(path, 48), *slow, "--slicer", "gradient") != []


def test_many_plans_in_between_are_announced(said, tmp_path):
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    changed = {"remat": "layer", "zero": 2, "logical": (1, 2), "options": {}}
    stages = (stage((0, 2), **changed), stage((3, 7), **changed))
    many = {"batch": 65536, "num_micro_batches": 65536, "step_s": 1e4}
    few = {"batch": 65536, "num_micro_batches": 32768, "step_s": 1e4, "schedule": "gpipe", "stages": stages}
    line = "estimating the plans in between takes about 20 seconds; Ctrl-C ends it"
    assert said("diff", plan_file(one, **many), plan_file(other, **few)) == [line]
    assert said("diff", plan_file(one, **many), plan_file(other, **many | {"num_micro_batches": 4096})) == []
    elsewhere = plan_file(other, **few, cluster="another")
    assert CliRunner().invoke(main, ["diff", str(one), str(elsewhere)]).stderr == ""


def test_more_of_anything_takes_no_less():
    least = planning_s("gpt-125m", 1, None, 1, "dynamic")
    for more in (("gpt-125m", 2, None, 1, "dynamic"), ("gpt-125m", 1, 96, 1, "dynamic"), ("m:f", 1, None, 1, "mcmc")):
        assert planning_s(*more) > least


def test_what_is_short_is_not_announced(capsys):
    announce("measuring", 9.9)
    assert capsys.readouterr() == ("", "")
    announce("measuring", 150.0)
    assert capsys.readouterr() == ("", "measuring takes about 2 minutes; Ctrl-C ends it\n")
