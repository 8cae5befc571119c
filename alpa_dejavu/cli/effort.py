"""How long a command is going to take, said before it starts where that is long."""

from __future__ import annotations

from alpa_dejavu._util import units
from alpa_dejavu.cli.output import progress
from alpa_dejavu.clusters.hosts_by_names import hosts_by_names
from alpa_dejavu.layers.models import known_models
from alpa_dejavu.plans.difference import priced_plans
from alpa_dejavu.problem import Plan

_SAID_S = 10.0
_KNOWN_S, _CONVOLUTIONS_S, _OWN_S = 6.0, 40.0, 20.0
"""Tracing, cutting and sharding a known model, one of convolutions, and a function of the user's."""
_GIVEN_S = 2.0
"""Tracing a model, and sharding it as one plan has it."""
_HOST_S, _HOSTS_S = 1.0, 0.005
"""The search for each host, and for each pair of hosts."""
_MICRO_BATCH_S = 1e-4
_MOST_LAYERS = 48
"""Of the numbers that are tried by themselves; with more, tables grow by the square, and each entry by the layers."""
_SLICERS = {"gradient": 5.0, "mcmc": 2.0}
"""So many times as long as the dynamic slicer."""
_EXHAUSTIVE_S, _EXHAUSTIVE_LAYERS = 0.03, 5
"""All slicings on a host, which are eight times as many with each layer, up to so many layers: more are refused."""
_KEPT_S, _EXPONENT = 0.7, 0.6
"""One search of 48 layers that are kept, on a host, and how it grows with hosts."""
_ONE_MICRO_BATCH = 0.2
"""The share of that where nothing is to be pipelined."""
_COUNTS, _UPGRADES = 5, 9
"""So many numbers of micro-batches are searched when planning again, and so many upgrades to explain a plan."""
_PRICED_S, _CELL_S = 0.01, 1e-6
"""Pricing a plan whose model is there, and what each stage of a micro-batch adds; to simulate that takes a tenth."""


def planning_s(model: str, num_hosts: int, layers: int | None, micro_batches: int, slicer: str) -> float:
    """Returns the seconds that planning a model takes on one idle core, estimated to about a factor of three.

    >>> planning_s("gpt-125m", 1, None, 32, "dynamic") < 10 < planning_s("gpt-125m", 64, None, 1024, "dynamic")
    True
    """
    known = model.lower() in known_models()
    made_s = (_CONVOLUTIONS_S if model.lower().startswith(("wresnet", "resnet")) else _KNOWN_S) if known else _OWN_S
    deep = _deep(layers or _MOST_LAYERS)
    if slicer == "exhaustive":
        number = _EXHAUSTIVE_LAYERS if layers is None else layers
        slicings = 8.0**number if number <= _EXHAUSTIVE_LAYERS else 0.0
        search_s = _EXHAUSTIVE_S * slicings * num_hosts
    else:
        search_s = (_HOST_S * num_hosts + _HOSTS_S * num_hosts**2) * deep**3 * _SLICERS.get(slicer, 1.0)
    return made_s * deep + search_s + _MICRO_BATCH_S * micro_batches


def estimating_s(plan: Plan, plans: int = 1, models: int = 1) -> float:
    """Returns an estimate of the seconds that it takes to trace and shard `models` models, and to predict the costs of
    `plans` plans like the given one.
    """
    return models * _GIVEN_S * _deep(plan.num_layers) + plans * (_PRICED_S + _CELL_S * _cells(plan))


def comparing_s(first: Plan, second: Plan) -> float:
    """Returns an estimate of the seconds that it takes to find out what each difference between two plans costs."""
    samples = {plan.batch // plan.num_micro_batches for plan in (first, second) if plan.batch}
    ways = {
        by and (by.latency, by.communication, by.calibration, by.runtime) for by in (first.priced_by, second.priced_by)
    }
    larger = max((first, second), key=_cells)
    number = priced_plans(first, second)
    return estimating_s(larger, number, len(samples) * len(ways)) if number else 0.0


def replanning_s(plan: Plan, num_hosts: int | None, slicer: str) -> float:
    """Returns an estimate of the seconds that it takes to plan again for a changed cluster, from the record that was
    kept beside a plan.

    Args:
        plan: the plan.
        num_hosts: the number of hosts of the changed cluster; None: as many as the plan's.
        slicer: the name of the slicer.
    """
    asked = plan.priced_by is not None and plan.priced_by.micro_batches != "auto"
    return (1 if asked else _COUNTS) * _kept_search_s(plan, num_hosts) * _SLICERS.get(slicer, 1.0)


def explaining_s(plan: Plan, kept: bool) -> float:
    """Returns an estimate of the seconds that it takes to explain a plan's step time; with `kept` also to plan again
    with faster devices, links or layers, from the record that was kept beside the plan.
    """
    figures = 3 * len(plan.stages) + (plan.num_layers if kept else 0)
    own_s = figures * _cells(plan) * _CELL_S / 10
    if not kept:
        return own_s
    pipelined = 1.0 if plan.num_micro_batches > 1 else _ONE_MICRO_BATCH
    return own_s + _UPGRADES * pipelined * _kept_search_s(plan)


def _kept_search_s(plan: Plan, num_hosts: int | None = None) -> float:
    hosts = num_hosts or len((plan.hardware or hosts_by_names(plan)).hosts)
    return _KEPT_S * plan.num_layers / _MOST_LAYERS * float(hosts) ** _EXPONENT


def _deep(layers: int) -> float:
    return max(1.0, layers / _MOST_LAYERS)


def _cells(plan: Plan) -> int:
    return len(plan.stages) * plan.num_micro_batches


def announce(what: str, expected_s: float) -> None:
    """Prints on standard error how long a task is expected to take, if that is more than ten seconds, and how to end
    it.
    """
    if expected_s > _SAID_S:
        progress().print(f"{what} takes about {units.roughly(expected_s)}; Ctrl-C ends it")
