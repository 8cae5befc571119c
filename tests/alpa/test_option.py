"""The object that a user writes: what it takes and refuses."""

import dataclasses
import logging
import subprocess
import sys

import pytest

import alpa_dejavu
from alpa_dejavu import DejavuStageOption


@pytest.fixture(autouse=True)
def _without_hooks():
    yield
    alpa_dejavu.uninstall()


def test_it_takes_the_fields_of_alpas_own_option():
    from alpa import AutoStageOption

    alpas = dataclasses.asdict(AutoStageOption())
    ours = DejavuStageOption(**alpas)
    assert {name: getattr(ours, name) for name in alpas} == alpas
    assert ours == DejavuStageOption()


def test_fields_without_effect_are_named(caplog):
    with caplog.at_level(logging.WARNING, "alpa_dejavu"):
        DejavuStageOption(use_hlo_cost_model=True, profiling_database_filename="x.pkl")
    assert "use_hlo_cost_model, profiling_database_filename: no effect" in caplog.text


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"submesh_physical_shape_space": "odd"}, ValueError, "'odd'.*'power_of_two'"),
        ({"submesh_logical_shape_space": "odd"}, ValueError, "'odd'.*'data_parallel_only'"),
        ({"submesh_physical_shape_space": "manual"}, ValueError, "takes a list"),
        ({"manually_specified_submeshes": [(1, 1)]}, ValueError, "others take none"),
        ({"stage_imbalance_tolerance": -0.1}, ValueError, "-0.1"),
        ({"slicer": "greedy"}, ValueError, "'greedy'"),
        ({"latency": "crystal ball"}, ValueError, "'crystal ball'"),
        ({"communication": "pigeon"}, ValueError, "'pigeon'"),
        ({"cluster": 3}, TypeError, "cluster is 3"),
        ({"history": 3}, TypeError, "history is 3"),
        ({"history": "nowhere/history.sqlite"}, ValueError, "there is no folder"),
        ({"strategy": "gshard"}, ValueError, "no strategy named 'gshard'"),
        ({"strategy": 3}, TypeError, "strategy is 3"),
        ({"strategy": "hetpipe"}, ValueError, "'hetpipe', but Alpa's runtime can't run its virtual workers"),
        ({"strategy": "amp", "slicer": "uniform"}, ValueError, "'amp' and slicer 'uniform', but only one"),
        ({"strategy": "amp", "profile": "decisive"}, ValueError, "'amp' and profile 'decisive'"),
        ({"calibration": "v10"}, ValueError, "there is no calibration 'v10'"),
        ({"calibration": 3}, TypeError, "calibration is 3"),
        ({"calibration": "v100", "communication": "free"}, ValueError, "both a calibration and communication='free'"),
        ({"calibration": "v100", "latency": "analytic"}, ValueError, "both a calibration and latency='analytic'"),
        ({"calibration": "v100", "communication": "alpha-beta"}, ValueError, "communication='alpha-beta'"),
    ],
)
def test_nonsense_is_refused_by_name(fields, error, said):
    with pytest.raises(error, match=said):
        DejavuStageOption(**fields)


def test_importing_the_package_imports_nothing_heavy():
    heavy = ("jax", "ray", "alpa", "numpy", "pydantic")
    code = f"import sys, alpa_dejavu; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert run.stdout.strip() == "[]"
