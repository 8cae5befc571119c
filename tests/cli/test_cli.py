"""The command line: what it prints, writes and refuses, with a planner that answers at once."""

import dataclasses
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

import alpa_dejavu
from alpa_dejavu import planning
from alpa_dejavu._util import units
from alpa_dejavu.calibration import Calibration, write_calibration
from alpa_dejavu.cli.main import main
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.placement import place
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.planning.given import plan_estimate as plan_estimate_module
from alpa_dejavu.planning.result import RunnerUp
from alpa_dejavu.planning.rivals import StrategyPlan, UnlikePipelinesError
from alpa_dejavu.planning.rivals.stages import Pipeline, PlacedStage
from alpa_dejavu.plans.plan_file import read_plan, write_plan
from alpa_dejavu.plans.stage_rows import PLANNED, known_columns, stage_rows
from alpa_dejavu.problem import MeshConfig, Run, Submesh
from alpa_dejavu.schedules import read_schedule
from alpa_dejavu.slicing import SLICERS
from alpa_dejavu.testing import example_cluster
from models import chain
from plans import example_plan, stage

CLUSTER, MODEL = example_cluster(1), chain(4, flop=1e9, activation_bytes=1e6, parameter_bytes=1e6)
ASKED = ["plan", "--model", "gpt-125m", "--cluster", "p3.16xlarge", "--batch", "32"]


def given(first, last):
    return GivenStage(first, last, Submesh(1, 2), MeshConfig((2, 1), 2, 1, {"force_batch_dim_to_mesh_dim": 0}))


def planned(count=4):
    made = estimate(MODEL, CLUSTER, Run(count), [given(0, 1), given(2, 3)], name="tiny", batch=32)
    other = dataclasses.replace(made.plan, step_s=2 * made.plan.step_s)
    return dataclasses.replace(made, runners_up=(RunnerUp(other, "100.0 % slower: +1 s idle"),))


@pytest.fixture
def run(monkeypatch):
    """Runs a command line; what the planner was asked is in `run.asked`."""

    def plan_model(*args, **named):
        runs.asked, runs.named = args, named
        return planned()

    def runs(*args):
        return CliRunner().invoke(main, [str(arg) for arg in args])

    monkeypatch.setattr(planning, "plan_model", plan_model)
    return runs


@pytest.fixture
def estimates(monkeypatch):
    """Estimates every plan as one of the example model."""
    asked = []

    class Fake:
        cluster = CLUSTER

        def __init__(self, plan, model, cluster, **options):
            assert options.keys() <= {"calibration", "runtime", "overlap", "attention", "cache", "trust_model"}
            asked.append((plan, model, cluster))

        def estimate(self, plan):
            return planned(plan.num_micro_batches)

    monkeypatch.setattr(plan_estimate_module, "PlanEstimator", Fake)
    return asked


def test_plan_prints_stages_figures_and_runners_up(run):
    result = run(*ASKED)
    assert result.exit_code == 0
    assert run.asked == ("gpt-125m", "p3.16xlarge", 1, 32, None, None)
    assert (run.named["risk"], run.named["memory_margin"]) == (0.01, None)
    run(*ASKED, "--memory-margin", "0.1")
    assert run.named["memory_margin"] == 0.1
    lines = result.stdout.splitlines()
    assert lines[0] == "tiny in 4 layers on example, 4 devices, schedule 1f1b"
    head = next(n for n, line in enumerate(lines) if line.startswith("stage "))
    facts = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines[1:head])
    assert facts["parallelism"] == "tensor 1, pipeline 2, data 2, no ZeRO, recompute none"
    assert facts["batch"] == "32 samples: micro-batch 4 x 4 x data 2"
    assert list(facts)[:5] == ["parallelism", "batch", "iteration time", "MFU", "memory"]
    known = known_columns(PLANNED, stage_rows(planned().plan))
    assert lines[head].split() == " ".join(column.name for column in known).split()
    assert lines[head + 1].split()[:7] == ["0-1", "0-3", "1x2", "2x1", "host-0", "none", "0"]
    wide = run(*ASKED, "--wide").stdout.splitlines()
    assert [line.split()[:2] for line in wide[head + 1 : head + 3]] == [["0", "0-1"], ["1", "2-3"]]
    assert "priced as Alpa runs it, the default: --runtime megatron" in result.stdout
    assert "priced as Alpa" not in run(*ASKED, "--runtime", "megatron").stdout
    made = planned()
    assert f"iteration time          {units.seconds(made.plan.step_s)}, {32 / made.plan.step_s:.4g} samples/s" in lines
    assert facts["MFU"].startswith(f"{100 * made.flop_utilisation:.1f} %: ")
    assert facts["MFU"].endswith(" a device in float32, by its traced products")
    assert "100.0 % slower: +1 s idle" in result.stdout
    assert "planned in" in result.stdout


def test_plan_says_what_other_schedules_would_be_worth(run):
    assert "other schedules" not in run(*ASKED).stdout
    result = run(*ASKED, "--other-schedules")
    assert result.exit_code == 0
    table = result.stdout.partition("other schedules")[2]
    rows = {line.split()[0]: line for line in table.splitlines()[1:] if line.split()}
    assert " 0.0 % " in rows["1f1b"]
    assert "alpa megatron" in rows["1f1b"]
    assert "torchtitan" in rows["interleaved"]
    assert "torchtitan" not in rows["zb_h1"], "its layers are compiled"
    assert "layers are too few for 6 stages" in result.stdout


def test_numbers_are_handed_on(run):
    options = "--hosts 8 --micro-batches 16 --layers 12 --schedule gpipe".split()
    assert run(*ASKED, *options).exit_code == 0
    assert run.asked[2:] == (8, 32, 16, 12)
    assert (run.named["schedule"], run.named["slicing"]) == ("gpipe", "dynamic")


def test_a_sample_has_as_many_tokens_as_the_model_may_have_where_no_fewer_are_asked_for(run):
    asked = ["plan", "--cluster", "p3.16xlarge", "--batch", "32", "--model"]
    assert "as many tokens as the model may have: --sequence takes fewer" in run(*asked, "mistral-nemo").output
    assert run.asked[0] == "mistral-nemo"
    assert "as the model may have" not in run(*asked, "gemma2-9b").output, "they are as many as usual"
    assert "as the model may have" not in run(*asked, "mistral-nemo", "--sequence", "2048").output
    assert "sequence=2048," in run.asked[0]
    assert "as the model may have" not in run(*asked, "gemma-2-9b", "--sequence", "2048").output
    assert "sequence=2048," in run.asked[0]
    refused = run(*asked, "gemma-2-9b", "--sequence", "16384").output
    assert "sequence is 16384, but must be at most 8192, the tokens that gemma-2-9b may have; give fewer" in refused
    assert "as the model may have" not in run(*asked, "gpt-125m").output
    text = "transformer:hidden=64,blocks=2,heads=2,vocabulary=128,sequence=256"
    assert "as the model may have" not in run(*asked, text).output
    assert run(*asked, text, "--sequence", "512").exit_code == 0
    assert "sequence=512" in run.asked[0]


@pytest.mark.parametrize(
    ("option", "name", "value", "usual", "wrong"),
    [
        *(("--slicer", "slicing", slicer, "dynamic", "greedy") for slicer in sorted(SLICERS)),
        *(("--communication", "communication", model, "auto", "pigeon") for model in ("links", "alpha-beta", "free")),
        ("--strategy", "strategy", "amp", "dejavu", "gshard"),
        ("--runtime", "runtime", "megatron", None, "galvatron"),
        ("--schedule", "schedule", "interleaved_3", None, "2f2b"),
    ],
)
def test_names_are_handed_on(run, option, name, value, usual, wrong):
    assert run(*ASKED, option, value).exit_code == 0
    assert run.named[name] == value
    assert run(*ASKED).exit_code == 0
    assert run.named[name] == usual
    assert run(*ASKED, option, wrong).exit_code == 2


@pytest.mark.alpa
def test_the_cluster_that_ray_has_is_asked_for(run, monkeypatch):
    from alpa_dejavu.alpa import ray_cluster

    monkeypatch.setattr(ray_cluster, "connected_cluster", lambda: CLUSTER)
    assert run("plan", "--model", "m:f", "--cluster", "ray", "--batch", "8").exit_code == 0
    assert run.asked[1] is CLUSTER


def test_everything_asked_for_is_written(run, tmp_path):
    paths = {kind: tmp_path / f"plan.{kind}" for kind in ("json", "python", "html", "trace")}
    result = run(*ASKED, "--steps", 1000, *(word for kind, path in paths.items() for word in (f"--{kind}", path)))
    assert result.exit_code == 0
    own, *others = paths.values()
    kept = tmp_path / "plan.json.kept.json.gz"
    assert [f"wrote {path}" for path in (own, kept, *others)] == result.stdout.splitlines()[-5:]
    assert read_plan(paths["json"]).model == "tiny"
    assert "ManualStageOption" in paths["python"].read_text()
    page = paths["html"].read_text()
    assert "<html" in page[:200]
    (whole,) = re.findall("^training +(.*)$", result.stdout, flags=re.MULTILINE)
    assert whole in page
    assert json.loads(paths["trace"].read_text())["traceEvents"]


@pytest.mark.parametrize(
    "wrong",
    [
        ["plan", "--model", "x"],
        [*ASKED, "--hosts", "0"],
        [*ASKED, "--batch", "-1"],
        [*ASKED, "--micro-batches", "0"],
        [*ASKED, "--layers", "some"],
        [*ASKED, "--schedule", "2f2b"],
        [*ASKED, "--slicer", "greedy"],
        ["explain"],
        ["diff", "one.json"],
        ["oracle"],
    ],
)
def test_wrong_usage_exits_with_2(run, wrong):
    result = run(*wrong)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_a_folder_that_is_not_there_is_refused_before_planning(run, tmp_path):
    result = run(*ASKED, "--json", tmp_path / "nowhere" / "plan.json")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert "there is no folder" in result.stderr
    assert not hasattr(run, "asked")


def no_plan(*_, **__):
    return place([Submesh(1, 3)] * 2, CLUSTER)


def wrong_name(*_, **__):
    return named_cluster("cray")


@pytest.mark.parametrize(
    ("fails", "said", "code"), [(no_plan, "Error: ", 3), (wrong_name, "Error: there is no machine 'cray'", 1)]
)
def test_no_plan_and_wrong_names_are_one_message_and_nothing_is_written(run, tmp_path, monkeypatch, fails, said, code):
    monkeypatch.setattr(planning, "plan_model", fails)
    result = run(*ASKED, "--json", tmp_path / "plan.json")
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith(said)
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_missing_is_named(run, monkeypatch):
    ours = pathlib.Path(alpa_dejavu.__file__).parent / "imaginary.py"
    names = {}
    exec(compile("def plan_model(*_, **__):\n    import no_such_package\n", str(ours), "exec"), names)
    monkeypatch.setattr(planning, "plan_model", names["plan_model"])
    result = run(*ASKED)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: the package 'no_such_package' is missing; `alpa-dejavu doctor` says")


def test_too_little_memory_is_said_in_a_line(run, monkeypatch):
    def hungry(*_, **__):
        raise MemoryError

    monkeypatch.setattr(planning, "plan_model", hungry)
    result = run(*ASKED)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: there isn't enough memory for this; end other programs, or ask for a")


def test_a_schedule_that_there_is_not_is_refused_with_a_near_one(run):
    said = " ".join(run(*ASKED, "--schedule", "zbv").stderr.split())
    assert "'zbv' is no schedule; did you mean 'zb_v'?; there are auto, 1f1b," in said


def test_an_improved_order_of_passes_is_written_beside_the_plan(run, tmp_path):
    result = run(*ASKED, "--order", tmp_path / "order.csv")
    assert result.exit_code == 0, result.stderr
    assert "order of passes" in result.stdout
    others = "megatron, deepspeed, galvatron, torchtitan, maxtext: its layers aren't the blocks of a transformer"
    assert f"runs on                 alpa; not {others}" in result.stdout
    order = read_schedule(tmp_path / "order.csv")
    assert (order.num_devices, order.num_micro_batches) == (2, 4)


def saved(tmp_path, name="plan.json", **changes):
    return write_plan(example_plan(**changes), tmp_path / name)


def test_estimate_says_what_a_plan_takes_and_what_its_file_says(run, estimates, tmp_path):
    path = saved(tmp_path)
    result = run("estimate", path, "--model", "mine:model", "--json", tmp_path / "again.json")
    assert result.exit_code == 0
    assert estimates == [(example_plan(), "mine:model", None)]
    assert "the file says           250 ms" in result.stdout
    assert read_plan(tmp_path / "again.json").step_s == planned().plan.step_s


def test_explain_says_what_bounds_a_plan_and_what_would_help(run, tmp_path):
    result = run("explain", saved(tmp_path))
    assert result.exit_code == 0
    assert "iteration time          250 ms, " in result.stdout
    assert "devices that compute twice as fast" in result.stdout
    assert "a device's step, on average" in result.stdout


def test_explain_says_what_to_speed_up_first(run, tmp_path):
    plan, kept = tmp_path / "plan.json", tmp_path / "plan.json.kept.json.gz"
    assert run(*ASKED, "--json", plan).exit_code == 0
    result = run("explain", plan)
    assert result.exit_code == 0
    rows = [line.split("  ")[0] for line in result.stdout.splitlines()]
    assert rows[rows.index("what to speed up first") + 1] == "all devices"
    expected = {"cost of layers [0-1]", "computing of stage 0 (layers 0-1 on host-0)", "bandwidth within hosts"}
    assert expected <= set(rows)
    assert "isn't known" not in result.stdout
    device = CLUSTER.hosts[0].device
    slower = dataclasses.replace(device, flop_per_s={"float32": 1e9})
    mine = Calibration("mine", "made up", "2026-01-01", devices={device.name: slower})
    write_calibration(mine, tmp_path / "mine.json")
    anew = run("explain", plan, "--calibration", tmp_path / "mine.json")
    assert anew.exit_code == 0
    assert "the plan was priced by analytic, alpha-beta, no calibration; here it is priced by " in anew.stdout
    figures = [next(line for line in one.stdout.splitlines() if "iteration time" in line) for one in (result, anew)]
    assert figures[0] != figures[1]
    refused = run("explain", plan, "--calibration", "nowhere.json")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("Error: ")
    kept.unlink()
    without = run("explain", plan)
    assert without.exit_code == 0
    assert f"{kept} is missing; `alpa-dejavu plan --json FILE` writes it beside the plan" in without.stdout
    assert "cost of layer 0" not in without.stdout
    kept.write_bytes(b"broken")
    assert "isn't what is kept for planning again" in run("explain", plan).stdout


def test_diff_says_what_differs_and_what_it_costs(run, estimates, tmp_path):
    one, other = saved(tmp_path, "one.json"), saved(tmp_path, "other.json", num_micro_batches=8)
    result = run("diff", one, other)
    assert result.exit_code == 0
    (row,) = [line for line in result.stdout.splitlines() if line.startswith("micro-batch")]
    _, before, after, told = re.split("  +", row.strip())
    assert (before.split(" x ")[1], after.split(" x ")[1]) == ("4", "8")
    cost = planned(8).plan.step_s - planned(4).plan.step_s
    assert told.startswith("+" if cost > 0 else "-")
    same = run("diff", one, one)
    assert "the plans don't differ" in same.stdout


@pytest.mark.parametrize("command", ["estimate", "explain", "diff"])
def test_a_file_that_is_no_plan_is_one_message(run, tmp_path, command):
    bad = tmp_path / "bad.json"
    bad.write_text('{"version": 3}')
    result = run(command, *[bad] * (2 if command == "diff" else 1))
    assert result.exit_code == 1
    assert "bad.json, line 1" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_module_runs_and_imports_nothing_heavy_for_help():
    code = (
        "import sys; sys.argv = ['alpa-dejavu', '--help']; import runpy\n"
        "try: runpy.run_module('alpa_dejavu', run_name='__main__')\n"
        "except SystemExit as done: assert done.code == 0\n"
        "print([m for m in ('jax', 'ray', 'alpa', 'sklearn', 'plotly', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.splitlines()[-1] == "[]"
    for command in ("plan", "estimate", "explain", "diff", "history", "doctor"):
        assert f"\n  {command} " in done.stdout


def test_the_version_is_told(run):
    try:
        version = importlib.metadata.version("alpa-dejavu")
    except importlib.metadata.PackageNotFoundError:
        version = "from a checkout"
    assert version in run("--version").stdout


@pytest.fixture
def unlike(monkeypatch):
    """A strategy's plan of two unlike pipelines on hosts of one device each."""
    cluster = example_cluster(3, 1)
    config = MeshConfig((1, 1), 1, 1)
    wide = dataclasses.replace(config, remat="layer")
    pipelines = (
        Pipeline((PlacedStage(0, 2, (0,), config), PlacedStage(3, 3, (1,), wide)), 2, 5),
        Pipeline((PlacedStage(0, 3, (2,), config),), 2, 3),
    )
    made = StrategyPlan("pipelines", pipelines, 16, 0.5, None, True, False, 7, 0.1, ("said of it",), (0.3, 0.25))

    def plan_model(*args, **named):
        raise UnlikePipelinesError(made, cluster)

    monkeypatch.setattr(planning, "plan_model", plan_model)
    return made


def test_unlike_pipelines_are_listed(unlike):
    result = CliRunner().invoke(main, [*ASKED, "--strategy", "pipelines"])
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == "2 pipelines of 4 layers on example (3 devices), batch 16: chosen by pipelines"
    assert "0 5 of 2 300 ms host-[0-1] 0-2 (1, 1), 3-3 (1, 1) remat" in lines
    assert "1 3 of 2 250 ms host-2 0-3 (1, 1)" in lines
    assert "iteration time 500 ms" in lines
    assert "throughput 32 samples/s" in lines
    assert lines[-1] == "said of it"


@pytest.mark.parametrize("option", ["--json", "--python", "--html", "--trace"])
def test_no_file_is_written_of_unlike_pipelines(unlike, tmp_path, option):
    path = tmp_path / "out"
    result = CliRunner().invoke(main, [*ASKED, "--strategy", "pipelines", option, str(path)])
    assert result.exit_code == 1
    assert "whose 2 pipelines are unlike here" in result.stderr
    assert "take 'dejavu'" in result.stderr
    assert "2 pipelines of 4 layers" in result.stdout
    assert not path.exists()


def test_beside_what_is_no_regular_file_nothing_is_kept_and_that_is_said(run):
    result = run(*ASKED, "--json", "/dev/null")
    assert result.exit_code == 0
    assert result.stdout.endswith(
        "wrote /dev/null\n/dev/null is no regular file, so nothing is kept beside it for planning again\n"
    )
    assert not pathlib.Path("/dev/null.kept.json.gz").exists()
    assert not pathlib.Path("/dev/null.kept.json.gz.new").exists()


def test_an_error_of_the_users_code_is_shown_as_it_is(run, monkeypatch, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def model(batch_size):\n    return {}['my key']\n")
    names = {}
    exec(compile(file.read_text(), str(file), "exec"), names)

    def calls(*_, **__):
        from alpa_dejavu._util.by_name import resolve

        return resolve("x", names["model"](1), {}, int)

    monkeypatch.setattr(planning, "plan_model", calls)
    result = run(*ASKED)
    assert result.exit_code == 1
    assert "KeyError: 'my key'" in result.stderr
    assert f'"{file}", line 2, in model' in result.stderr
    assert "_cli/plan.py" not in result.stderr


def test_estimate_says_where_memory_is_missing(run, estimates, tmp_path, monkeypatch):
    def too_much(_, plan):
        made = planned()
        stages = tuple(dataclasses.replace(s, memory_bytes=s.memory_limit_bytes + 2**30) for s in made.plan.stages)
        return dataclasses.replace(made, plan=dataclasses.replace(made.plan, stages=stages))

    monkeypatch.setattr(plan_estimate_module.PlanEstimator, "estimate", too_much)
    result = run("estimate", saved(tmp_path))
    assert result.stdout.count("1.00 GiB of each device's memory are missing on stage [0-1]\n") == 1
    assert "what would fit          tried, and not enough: " in result.stdout
    assert "MISSING 1.00 GiB" in result.stdout


def test_diff_says_which_plans_in_between_it_left_out(run, monkeypatch, tmp_path):
    class Picky:
        def __init__(self, *_, **__):
            pass

        def estimate(self, plan):
            if (plan.num_micro_batches, plan.schedule) == (8, "1f1b"):
                raise ValueError("this doesn't fit")
            return planned(plan.num_micro_batches)

    monkeypatch.setattr(plan_estimate_module, "PlanEstimator", Picky)
    one = saved(tmp_path, "one.json")
    other = saved(tmp_path, "other.json", num_micro_batches=8, schedule="gpipe")
    result = run("diff", one, other)
    assert result.exit_code == 0
    rows = {line.split()[0]: line.split()[-2] for line in result.stdout.splitlines() if "-" in line or "g" in line}
    assert float(rows["schedule"]) == 0
    assert rows["micro-batch"] == rows["together"]
    said = "1 plan in between can't be estimated, and costs are of other orders; the first: this"
    assert said in result.stdout
    # The files of these tests say 250 ms each.
    assert "the files' own times differ by 0 s, not by " in result.stdout


def test_diff_of_plans_for_other_problems_traces_nothing(run, estimates, tmp_path):
    one, other = saved(tmp_path, "one.json"), saved(tmp_path, "other.json", model="bert", stages=(stage((0, 5)),))
    result = run("diff", one, other)
    assert result.exit_code == 0
    assert "gpt-125m" in result.stdout
    assert "bert" in result.stdout
    assert 'rows have no costs, as plans in between need the same "model"; the next table' in result.stdout
    assert estimates == []
