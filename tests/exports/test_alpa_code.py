"""The Python that runs a plan: Alpa makes of it the option that it says."""

import ast
import os
import subprocess
import sys

import alpa
import pytest

import alpa_dejavu
from alpa_dejavu import DejavuLayerOption, DejavuStageOption
from alpa_dejavu.exports.alpa_code import alpa_code, alpa_options
from plans import example_plan, hardware, stage


def method_of(plan, monkeypatch):
    """What the written code makes, with no cluster to connect to."""
    connected = []
    monkeypatch.setattr(alpa, "init", connected.append)
    names = {}
    exec(compile(alpa_code(plan), "plan.py", "exec"), names)
    assert connected == ["ray"]
    return names["method"]


@pytest.fixture
def unhooked():
    """Alpa as it was, once an option of ours was made."""
    yield
    alpa_dejavu.uninstall()


def test_alpa_is_given_exactly_the_plan(monkeypatch):
    plan = example_plan(hardware=hardware(devices=4))
    method = method_of(plan, monkeypatch)
    assert isinstance(method, alpa.PipeshardParallel)
    assert method.num_micro_batches == 4
    assert method.pipeline_schedule == "1f1b"
    option = method.stage_option
    assert isinstance(option, alpa.ManualStageOption)
    assert option.forward_stage_layer_ids == [[0, 1, 2], [3]]
    assert option.submesh_physical_shapes == [(1, 2), (1, 2)]
    assert option.submesh_logical_shapes == [(2, 1), (1, 2)]
    assert option.submesh_autosharding_option_dicts == [alpa_options(stage) for stage in plan.stages]
    assert isinstance(method.layer_option, alpa.AutoLayerOption)
    assert (method.layer_option.layer_num, method.layer_option.remat_mode) == (4, "none")


SOME = ("none", "layer", "layer", "none")


@pytest.mark.parametrize(
    ("layers", "remat", "expected"),
    [  # Alpa's knows its own marks alone, and remat of all layers or of none.
        ("auto", ("layer", "layer"), alpa.AutoLayerOption(layer_num=2, remat_mode="coarse_grained_remat")),
        ("manual", ("none", "none"), DejavuLayerOption(remat_layers=[])),
        ("manual", ("layer", "layer"), DejavuLayerOption(remat_layers=[0, 1])),
        ("auto", SOME, DejavuLayerOption(layer_num=4, remat_layers=[1, 2])),
        ("manual", SOME, DejavuLayerOption(layer_num=None, remat_layers=[1, 2])),
    ],
)
def test_remat_goes_into_the_layer_option(monkeypatch, layers, remat, expected):
    stages = tuple(stage((n, n), remat=own) for n, own in enumerate(remat))
    option = method_of(example_plan(stages=stages, layer_option=layers), monkeypatch).layer_option
    assert type(option) is type(expected)
    assert vars(option) == vars(expected)


def test_no_name_of_a_model_breaks_the_code():
    for name in ("", '"""', "\\", "a\nb", "größe"):
        assert "predicted" in ast.get_docstring(ast.parse(alpa_code(example_plan(model=name))))


def on(*hosts, **changes):
    """A plan with a stage of all 8 devices on each of these hosts."""
    names = [f"p3.16xlarge-{host}" for host in hosts]
    stages = tuple(stage((n, n), (1, 8), (8, 1), hosts=(name,)) for n, name in enumerate(names))
    return example_plan(stages=stages, **{"hardware": hardware(3), "contingencies": {}, **changes})


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(on(1, 0), id="a host is left unused"),
        pytest.param(on(0, 1, 2), id="in another order than Alpa's"),
        pytest.param(on(2, 1, 0, hardware=None), id="of a cluster that isn't known"),
        pytest.param(
            example_plan(stages=tuple(stage((n, n), (2, 1)) for n in range(2)), hardware=hardware(2, 2)),
            id="on parts of several hosts",
        ),
    ],
)
def test_what_alpa_would_place_otherwise_is_given_whole(monkeypatch, unhooked, plan):
    option = method_of(plan, monkeypatch).stage_option
    assert isinstance(option, DejavuStageOption)
    assert option.plan == plan
    assert "ManualStageOption(" not in alpa_code(plan)


def test_the_script_runs_on_its_own(tmp_path):
    """In a program of its own, with a stand-in for Alpa that has what a script may use of it."""
    (tmp_path / "alpa.py").write_text("init, PipeshardParallel, AutoLayerOption = print, dict, dict\n")
    stand_in = "import alpa_dejavu\nalpa_dejavu.DejavuStageOption = dict\n"
    said = "print([stage.hosts for stage in method['stage_option']['plan'].stages])\n"
    (tmp_path / "run.py").write_text(stand_in + alpa_code(on(1, 0)) + said)
    path = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    said = subprocess.check_output([sys.executable, "run.py"], cwd=tmp_path, env=path, text=True)
    assert said.splitlines() == ["ray", "[('p3.16xlarge-1',), ('p3.16xlarge-0',)]"]
