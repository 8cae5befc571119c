"""The Python that runs a plan: Alpa makes of it the option that it says."""

import ast
import dataclasses

import alpa
import pytest
from plans import example_plan, stage

from alpa_dejavu import DejavuLayerOption
from alpa_dejavu.alpa_code import alpa_code, alpa_options


def method_of(plan, monkeypatch):
    """What the written code makes, with no cluster to connect to."""
    connected = []
    monkeypatch.setattr(alpa, "init", connected.append)
    names = {}
    exec(compile(alpa_code(plan), "plan.py", "exec"), names)
    assert connected == ["ray"]
    return names["method"]


def test_alpa_is_given_exactly_the_plan(monkeypatch):
    plan = example_plan()
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


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_options_are_fields_of_alpas_and_say_the_zero_level(zero):
    options = alpa_options(stage((0, 0), zero=zero))
    made = dataclasses.replace(alpa.AutoShardingOption(prefer_reduce_scatter=True, force_zero_stage_3=True), **options)
    assert (made.prefer_reduce_scatter, made.force_zero_stage_3) == (zero == 2, zero == 3)
    assert made.force_batch_dim_to_mesh_dim == 0


@pytest.mark.parametrize(("layers", "kind"), [("auto", alpa.AutoLayerOption), ("manual", alpa.ManualLayerOption)])
def test_remat_of_all_layers_goes_into_the_layer_option(monkeypatch, layers, kind):
    stages = (stage((0, 0), remat="layer"), stage((1, 1), remat="layer"))
    option = method_of(example_plan(stages=stages, layer_option=layers), monkeypatch).layer_option
    assert isinstance(option, kind)
    assert option.remat_layer if layers == "manual" else option.remat_mode == "coarse_grained_remat"


@pytest.mark.parametrize(("layers", "number"), [("auto", 4), ("manual", None)])
def test_remat_of_some_stages_takes_our_layer_option(monkeypatch, layers, number):
    stages = (stage((0, 0)), stage((1, 2), remat="layer"), stage((3, 3)))
    option = method_of(example_plan(stages=stages, layer_option=layers), monkeypatch).layer_option
    assert option == DejavuLayerOption(layer_num=number, remat_layers=[1, 2])


def test_no_name_of_a_model_breaks_the_code():
    for name in ("", '"""', "\\", "a\nb", "größe"):
        assert "predicted" in ast.get_docstring(ast.parse(alpa_code(example_plan(model=name))))


def test_a_plan_of_many_stages_stays_readable(monkeypatch):
    plan = example_plan(stages=tuple(stage((30 * n, 30 * n + 29)) for n in range(16)))
    lines = alpa_code(plan).splitlines()
    assert max(map(len, lines)) <= 120
    assert "        submesh_physical_shapes=[(1, 2)] * 16," in lines
    assert method_of(plan, monkeypatch).stage_option.submesh_physical_shapes == [(1, 2)] * 16
