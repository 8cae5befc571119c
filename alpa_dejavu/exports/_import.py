"""A plan from another runtime's configuration, with what it is predicted to take."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any, final

from alpa_dejavu._util.near_names import near
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.host_classes import summary_of
from alpa_dejavu.costs.runtime import ALPA, runtime_names
from alpa_dejavu.exports._target import Foreign, Target
from alpa_dejavu.exports._targets import SOURCES
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning.given.plan_estimate import PlanEstimator
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.planning.search.models.named_model import sized_transformer
from alpa_dejavu.problem import Cluster, PricedBy

_UNDIVIDED = "norms and residuals are priced whole on each tensor-parallel device, as without sequence parallelism"


@final
@dataclasses.dataclass(frozen=True)
class Imported:
    """A plan that another runtime's configuration says."""

    result: PlanningResult  # the plan, estimated
    ignored: tuple[str, ...]  # sentences, with lines, on what was left aside; notes say what is priced otherwise
    estimator: PlanEstimator  # what plans of the same model on the same cluster can be estimated by


def import_plan(
    path: str | os.PathLike[str],
    source: str,
    cluster: str | Cluster,
    hosts: int = 1,
    model: Transformer | None = None,
    config: str = "",
    optimizer: str | None = None,
    **priced_by: Any,
) -> Imported:
    """Returns the plan that another runtime's configuration says, with its predicted seconds and bytes.

    The file is a script with Megatron's command line, NeMo's or Megatron-Bridge's YAML, torchtitan's TOML or Python,
    MaxText's YAML or script, DeepSpeed's or Galvatron's JSON, by its name in `SOURCES`; the model's sizes are in it if
    None, and its optimizer where it names one. `config` names one of several configurations in it. `priced_by` are
    arguments of `PlanEstimator`. Raises ValueError if it can't be read, contradicts itself (says in which line),
    doesn't fit the cluster, or lacks the model's sizes.
    """
    if source not in SOURCES:
        readable = f"{', '.join(SOURCES)}, whose configurations can be read"
        raise ValueError(f"source is {source!r}, but must be one of {readable}{near(source, SOURCES)}")
    target = SOURCES[source]
    if config and "config" not in target.asks:
        raise ValueError(f"config is {config!r}, but must be left out for {source}, whose files have one configuration")
    machines = named_cluster(cluster, hosts) if isinstance(cluster, str) else cluster
    about = {"hosts": len(machines.hosts), "config": config}
    asked = {name: about[name] for name in target.asks}
    assert target.reader is not None, "a source has a reader"
    foreign = target.reader(pathlib.Path(path), machines.num_devices, model, **asked)
    if foreign.model is None:
        raise ValueError(f"{path} doesn't say the model's sizes; give --model, a config.json or a known name")
    foreign = _trained_by(foreign, optimizer, source, target)
    assert foreign.model is not None, "it was asked for"
    plan = foreign.outline.plan(machines, foreign.model)
    runtime = target.name if target.name in runtime_names() else ALPA.name
    pricing = PricedBy(runs_on=target.name, runtime=runtime, sequence_parallel=foreign.sequence_parallel)
    plan = dataclasses.replace(plan, priced_by=pricing)
    choices = {**foreign.priced_by, **{name: value for name, value in priced_by.items() if value is not None}}
    estimator, otherwise = PlanEstimator(plan, None, machines, **choices), foreign.otherwise
    if not foreign.sequence_parallel and sized_transformer(plan.model, estimator.prices.models.runtime.name, 1):
        otherwise = (*otherwise, _UNDIVIDED)
    by, hardware = estimator.prices.named(plan.priced_by), summary_of(estimator.cluster)
    result = estimator.estimate(dataclasses.replace(plan, priced_by=by, hardware=hardware))
    noted = dataclasses.replace(result.plan, notes=(*otherwise, *result.plan.notes))
    return Imported(dataclasses.replace(result, plan=noted), foreign.ignored, estimator)


def _trained_by(foreign: Foreign, optimizer: str | None, source: str, target: Target) -> Foreign:
    """Returns what a configuration says with the optimizer that is given where it names none."""
    assert foreign.model is not None, "it was asked for"
    if optimizer is None:
        return foreign
    if foreign.trained_by not in ("", optimizer):
        raise ValueError(
            f"optimizer is {optimizer!r}, but the configuration of {source} names {foreign.trained_by!r}; leave "
            "--optimizer out, or change the file"
        )
    model = dataclasses.replace(foreign.model, optimizer=optimizer)
    if target.runtime is not None and (why := target.runtime.why_not_trained(model.text)):
        raise ValueError(f"{target.name} can't train the model: {why}")
    return dataclasses.replace(foreign, model=model)
