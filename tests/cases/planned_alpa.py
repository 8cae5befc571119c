"""Alpa up to the construction of its stages: what that returned is handed over, and nothing is compiled after it."""

import functools

from alpa.global_env import global_config
from alpa.pipeline_parallel import compile_executable, stage_construction

import alpa_dejavu


class PlannedError(Exception):
    """Carries what stage construction returned, so that nothing is compiled after it."""

    def __init__(self, result):
        self.result = result


def stopped_after_planning(monkeypatch):
    """The body of a fixture: Alpa's own construction runs, then compilation is broken off."""
    alpa_dejavu.uninstall()
    original = stage_construction.cluster_layers_and_slice_mesh

    @functools.wraps(original)
    def stop(*args, **kwargs):
        raise PlannedError(original(*args, **kwargs))

    monkeypatch.setattr(global_config, "backend", "cpu")
    monkeypatch.setattr(stage_construction, "cluster_layers_and_slice_mesh", stop)
    monkeypatch.setattr(compile_executable, "cluster_layers_and_slice_mesh", stop)
    yield
    alpa_dejavu.uninstall()
