"""The Python that runs a plan: Alpa makes of it the option that it says."""

import ast
import dataclasses
import os
import subprocess
import sys

import alpa
import pytest
from alpa.device_mesh import VirtualPhysicalMesh
from alpa.pipeline_parallel import stage_construction

import alpa_dejavu
from alpa_dejavu import DejavuLayerOption, DejavuStageOption
from alpa_dejavu.exports.alpa_code import alpa_code, alpa_options
from alpa_dejavu.problem import Run
from alpa_dejavu.testing import example_cluster
from models import chain, planned
from plans import example_plan, hardware, stage
from unlike import islands


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


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_options_are_fields_of_alpas_and_say_the_zero_level(zero):
    options = alpa_options(stage((0, 0), zero=zero))
    made = dataclasses.replace(alpa.AutoShardingOption(prefer_reduce_scatter=True, force_zero_stage_3=True), **options)
    assert (made.prefer_reduce_scatter, made.force_zero_stage_3) == (zero == 2, zero == 3)
    assert made.force_batch_dim_to_mesh_dim == 0


def test_a_plan_of_many_stages_stays_readable(monkeypatch):
    hosts = [("p3.16xlarge-" + str(3 - n // 4),) for n in range(16)]
    stages = tuple(stage((30 * n, 30 * n + 29), hosts=own) for n, own in enumerate(hosts))
    plan = example_plan(stages=stages, hardware=hardware(4))
    lines = alpa_code(plan).splitlines()
    assert max(map(len, lines)) <= 120
    assert "        submesh_physical_shapes=[(1, 2)] * 16," in lines
    assert method_of(plan, monkeypatch).stage_option.submesh_physical_shapes == [(1, 2)] * 16


def test_where_alpa_places_stages_itself_they_are_on_the_hosts_of_the_plan(monkeypatch):
    """A planned one: what is crossed by little is cut, so that there are as many stages as hosts."""
    cluster = example_cluster(4, 1)
    model = chain(4, activation_bytes=1.0, parameter_bytes=1e7)
    plan = planned(model, cluster, 8, Run(8)).plan
    assert len(plan.stages) > 1
    option = method_of(plan, monkeypatch).stage_option
    assert isinstance(option, alpa.ManualStageOption)
    mesh = VirtualPhysicalMesh([*range(4)], [{"NodeManagerAddress": f"10.0.0.{n}"} for n in range(4)], 1)
    sliced = stage_construction.get_sliced_virtual_submeshes(mesh, option.submesh_physical_shapes)
    names = [host.name for host in cluster.hosts]
    assert [tuple(names[host] for host in own.host_ids) for own in sliced] == [one.hosts for one in plan.stages]


def test_a_plan_in_alpas_own_order_is_alpas_own_option(monkeypatch):
    assert isinstance(method_of(on(2, 1, 0), monkeypatch).stage_option, alpa.ManualStageOption)


def test_on_islands_stages_stay_on_their_hosts(monkeypatch, unhooked):
    where = islands()
    plan = planned(chain(4, activation_bytes=1e3, parameter_bytes=1e6), where, 8, Run(8), contingencies=True).plan
    assert any(set(one.hosts) in ({"a", "c"}, {"b", "d"}) for one in plan.stages), "of near hosts"
    assert plan.contingencies
    option = method_of(plan, monkeypatch).stage_option
    assert isinstance(option, DejavuStageOption)
    assert option.plan == dataclasses.replace(plan, contingencies={})
    assert [one.hosts for one in option.plan.stages] == [one.hosts for one in plan.stages]
