"""Tells apart the tests that need Alpa, Ray or patches/; where those aren't installed, all others run."""

import importlib.util
import pathlib

import pytest

_HAS_ALPA = importlib.util.find_spec("alpa") is not None
_ROOT = pathlib.Path(__file__).parent

# Folders and modules that import Alpa or Ray. A single test that does is marked with `alpa`, or with `ray`.
_OF_ALPA = {
    _ROOT / path
    for path in (
        "alpa_dejavu/alpa",
        "examples/demo/session.py",
        "tests/alpa",
        "tests/cases/drawn_runs.py",
        "tests/cases/hlo_tools.py",
        "tests/cases/layered_step.py",
        "tests/cases/micro_batches.py",
        "tests/cases/planned_alpa.py",
        "tests/cases/trained_alpa.py",
        "tests/exports/test_alpa_code.py",
        "tests/layers/test_layers_cluster.py",
        "tests/layers/test_models_alpa.py",
        "tests/patches",
        "tests/sharding/hlo",
        "tests/sharding/test_layer_compiled.py",
        "tests/sharding/test_sharding_module.py",
        "tests/training/initialization/test_into_alpa.py",
        "tests/training/optex/test_optex_alpa.py",
        "tests/training/robust/test_robust_pipelines.py",
        "tests/training/robust/test_robust_value_and_grad.py",
    )
}


def pytest_ignore_collect(collection_path):
    """Leaves out what imports Alpa where it isn't installed."""
    return True if not _HAS_ALPA and collection_path in _OF_ALPA else None


def pytest_itemcollected(item):
    """Skips tests that are marked as Alpa's where it isn't installed."""
    if not _HAS_ALPA and any(map(item.get_closest_marker, ("alpa", "ray"))):
        item.add_marker(pytest.mark.skip("Alpa isn't installed: `make test` runs it"))
