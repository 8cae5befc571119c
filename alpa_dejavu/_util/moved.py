"""Import paths of version 0.1 that have moved: the old ones still work, and say where the new one is."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
import warnings
from collections.abc import Sequence
from typing import final

__all__ = ["forward"]

_PACKAGE = "alpa_dejavu"
_MOVED = {
    "alpa_code": "exports.alpa_code",
    "breakdown": "simulation.breakdown",
    "changed_cluster": "clusters.changed_cluster",
    "child_process": "_util.child_process",
    "communication": "costs.communication",
    "cost_models": "costs.cost_models",
    "cost_table": "costs.table",
    "difference": "plans.difference",
    "doctor": "cli.installation",
    "explanation": "report.explanation",
    "features": "layers.features",
    "history": "calibration.history",
    "hlo": "sharding.hlo",
    "initialization": "training.initialization",
    "initialization.into_alpa": "alpa.into_alpa",
    "interstage": "costs.interstage",
    "kept": "planning.kept",
    "latency": "costs.latency",
    "layer_option": "alpa.layer_option",
    "local_cluster": "alpa.local_cluster",
    "makespan": "slicing.makespan",
    "measured_memory": "costs.measured_memory",
    "measurement": "calibration.measurement",
    "memory": "costs.memory",
    "memory_margin": "costs.memory_margin",
    "micro_batch": "layers.micro_batch",
    "model_cache": "planning.model_cache",
    "model_source": "planning.model_source",
    "models": "layers.models",
    "moves": "planning.state_migration",
    "online": "planning.online",
    "option": "alpa.option",
    "placement": "clusters.placement",
    "plan_estimate": "planning.plan_estimate",
    "plan_file": "plans.plan_file",
    "price": "planning.price",
    "relaxation": "slicing.relaxation",
    "replan": "planning.replanning",
    "resume": "alpa.resume",
    "sensitivity": "simulation.sensitivity",
    "sharded": "sharding.sharded",
    "simulate": "simulation.step",
    "space": "clusters.space",
    "spare": "planning.spare",
    "stage_costs": "costs.stage_costs",
    "step_slopes": "simulation.stage_slopes",
    "straggler": "planning.straggler",
    "strategies": "planning.strategies",
    "trace_events": "report.trace_events",
    "uncertainty": "planning.uncertainty",
    "upgrades": "report.upgrades",
}
"""The modules that were public, by their old paths inside the package."""


def forward() -> None:
    """Makes this package's old import paths of moved modules import these from their new paths, with a
    `DeprecationWarning`; a second call changes nothing.
    """
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())


@final
class _Moved(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the old paths, after all others have found nothing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, old = fullname.partition(".")
        if package != _PACKAGE or old not in _MOVED:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        new = f"{_PACKAGE}.{_MOVED[spec.name.partition('.')[2]]}"
        warnings.warn(f"{spec.name} has moved to {new}; import it from there", DeprecationWarning, stacklevel=2)
        there = importlib.import_module(new)
        old = types.ModuleType(spec.name, there.__doc__)
        old.__dict__.update({name: value for name, value in vars(there).items() if not name.startswith("__")})
        old.__dict__.update({name: getattr(there, name) for name in getattr(there, "__all__", ())})
        return old

    def exec_module(self, module: types.ModuleType) -> None:
        """Does nothing: the module at the new path ran when it was imported."""
