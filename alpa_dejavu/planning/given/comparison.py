"""Compares clusters for one model: what a step takes and costs on each, by each way to keep less in memory.

    from alpa_dejavu.planning.given.comparison import compare
    compare("gpt-1.3b", ["2 x p3.16xlarge", "p4d.24xlarge"], batch=256).changes("seconds")

In: a model, a batch, and clusters. Out: a `Comparison`: a `Cell` for each cluster and `Saving`, which is the plan that
`plan_model` finds there, or why there is none; the order of the clusters, with how sure it is; and where it changes.
Clusters whose seconds rest on unlike grounds, as a calibration and data sheets, are compared on the lower one, too.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, final

from alpa_dejavu._util.dataclass_format import Stored, data_of, typed_dict_of
from alpa_dejavu._util.format_fields import WHOLE, Count, Names, Words, listed, stated
from alpa_dejavu._util.phases import phases_of
from alpa_dejavu.calibration import NONE, Calibration, check_choice
from alpa_dejavu.clusters import named_cluster, price_sources
from alpa_dejavu.clusters.gpus import gpu_of
from alpa_dejavu.costs.runtime import runtime_names
from alpa_dejavu.planning._restricted import in_blocks
from alpa_dejavu.planning.by_name import plan_model
from alpa_dejavu.planning.given._cells import SAVINGS, Cell, Figures, Saving, SavingData, figures, savings_data
from alpa_dejavu.planning.given._orders import (
    MEASURES,
    Order,
    OrderChange,
    Place,
    changes,
    joint_draws,
    orders,
    stages_alone,
)
from alpa_dejavu.planning.given.plan_estimate import estimate
from alpa_dejavu.planning.result import OURS, PlanningResult
from alpa_dejavu.planning.search._candidate import Candidate
from alpa_dejavu.planning.search._shapes import micro_batch_counts
from alpa_dejavu.planning.search.given_stages import given_stages
from alpa_dejavu.planning.search.models.named_model import attention_on, model_source
from alpa_dejavu.planning.search.models.traced_model import TracedModel
from alpa_dejavu.problem import Cluster, Model, NoPlanError
from alpa_dejavu.problem.checks import one_of
from alpa_dejavu.problem.limits import check_sizes

__all__ = [
    "MEASURES", "SAVINGS", "Cell", "Comparison", "Figures", "Order", "OrderChange", "Saving", "compare",
    "comparison_format", "comparison_text",
]  # fmt: skip


@final
@dataclasses.dataclass(frozen=True)
class Comparison:
    """A comparison of clusters for one model, by ways to keep less in memory."""

    model: Words
    batch: Count
    # For so many steps cells say what a training takes; None: they don't.
    steps: Annotated[Count | None, stated("a whole number of at least 1, or null")]
    clusters: Names
    savings: Annotated[
        tuple[Saving, ...],
        Stored(tuple[SavingData, ...], write=savings_data),
        listed("a list of ways to keep less in memory"),
    ]
    # A cell for each saving and cluster, all clusters of the first saving first.
    cells: Annotated[tuple[Cell, ...], listed("a list of cells")]
    orders: Annotated[tuple[Order, ...], listed("a list of orders")]  # of the clusters, by seconds and by price

    def cell(self, cluster: str, saving: str) -> Cell:
        """Returns the cell of a cluster and a saving, by their names. Raises KeyError if there is none."""
        return {cell.place: cell for cell in self.cells}[cluster, saving]

    def order(self, saving: str, measure: str = "seconds") -> Order:
        """Returns the order of the clusters with a saving, by "seconds" or "price"; KeyError if there is none."""
        orders: dict[tuple[str, str], Order] = {(order.saving, order.measure): order for order in self.orders}
        return orders[saving, measure]

    def same_plan(self, cluster: str, other: str, saving: str) -> bool:
        """Returns whether two clusters take the same plan, as where the larger one leaves hosts unused."""
        first, second = self.cell(cluster, saving).figures, self.cell(other, saving).figures
        return first is not None and second is not None and first.is_same_plan(second)

    def changes(self, measure: str = "seconds") -> tuple[OrderChange, ...]:
        """Returns the pairs of clusters whose order, by "seconds" or "price", changes with the saving."""
        return tuple(changes([order for order in self.orders if order.measure == measure], self.clusters))


def compare(
    model: str | Callable[..., Any] | Model,
    clusters: Sequence[str | Cluster],
    batch: int,
    *,
    savings: Sequence[Saving] = SAVINGS[-1:],
    steps: int | None = None,
    layers: int | None = None,
    micro_batches: int | None = None,
    objective: str = "time",
    communication: str = "auto",
    calibration: str | os.PathLike[str] | Calibration | None = None,
    runs_on: str = "",
    runtime: str | None = None,
    overlap: str | None = None,
    attention: str = "",
    cache: str | os.PathLike[str] | Literal[False] | None = None,
) -> Comparison:
    """Returns what a step of a model takes and costs on each of several clusters, by ways to keep less in memory.

    Each cell has the plan that `plan_model`, whose options these are, finds with the saving's. A cluster is a machine
    type, "2 x p3.16xlarge", a file's path, or a `Cluster`. A calibration is taken where it knows the devices. With
    `steps` cells say the hours and price of a training. Raises ValueError for what can't be planned anywhere; what
    hinders only some is told by their cells.
    """
    one_of("compare", "objective", objective, ("time", "price"))
    check_sizes(batch, layers, micro_batches)
    chosen = check_choice(calibration, "auto", communication)
    flags, named = _named(clusters)
    prices_from = {b.name: price_sources(a) if isinstance(a, str) else () for a, b in zip(clusters, named, strict=True)}
    grounds = _grounds(named, chosen)
    counts = micro_batch_counts(batch) if micro_batches is None else (micro_batches,)
    blocks = in_blocks(model, runs_on, OURS) if runs_on else model
    framework = runtime or (runs_on if runs_on in runtime_names() else "")
    ways = {cluster.name: attention_on(cluster, framework, attention) for cluster in named}
    by_way = {
        way: model_source(blocks, batch, counts, cache, runtime=framework, attention=way)
        for way in dict.fromkeys(ways.values())
    }
    sources = {name: by_way[way] for name, way in ways.items()}
    source = sources[named[0].name]
    _ = source.training  # a model that there isn't is told before anything is planned
    ask = functools.partial(
        plan_model, batch=batch, micro_batches=micro_batches, layers=layers, objective=objective,
        communication=communication, runs_on=runs_on, runtime=runtime, overlap=overlap, attention=attention,
    )  # fmt: skip
    cells, own, common = list[Cell](), dict[Place, Candidate](), dict[Place, Candidate]()
    for n, (saving, cluster) in enumerate(itertools.product(savings, named), 1):
        cell = Cell(cluster.name, saving.name, f"{flags[cluster.name]} {saving.flags}".strip(), None)
        of_model, ground = sources[cluster.name], grounds[cluster.name]
        # What a framework can run of a model is told by its name.
        alone = model if runs_on else of_model.anew() if isinstance(of_model, TracedModel) else of_model
        choices: dict[str, Any] = {"remat": saving.remat, "zero": saving.zero, "offload": saving.offload}
        try:
            with phases_of(f"{n} of {len(savings) * len(named)} ({saving.name} on {cluster.name})"):
                planned = ask(alone, cluster, calibration=ground.calibration, **choices)
        except NoPlanError as error:
            cells.append(dataclasses.replace(cell, why_not=str(error), fits=False, remedies=error.remedies))
        except ValueError as error:
            cells.append(dataclasses.replace(cell, why_not=str(error)))
        else:
            lower = _on_common_ground(planned, cluster, communication, grounds)
            own[cell.place] = stages_alone(planned)
            common[cell.place] = own[cell.place] if lower is None else stages_alone(lower)
            of_cell = figures(planned, steps, ground.name, lower, prices_from[cluster.name])
            cells.append(dataclasses.replace(cell, figures=of_cell))
    hindered = [cell.why_not for cell in cells if cell.figures is None and cell.fits]
    if len(hindered) == len(cells):
        raise ValueError(hindered[0])
    names = {place: grounds[place[0]].name for place in own}
    draws = joint_draws(own, names)
    common_draws = joint_draws(common, dict.fromkeys(names, "")) if _unlike(grounds) else draws
    return Comparison(
        source.name, batch, steps, tuple(cluster.name for cluster in named), tuple(savings), tuple(cells),
        tuple(orders(cells, draws, common_draws)),
    )  # fmt: skip


@final
@dataclasses.dataclass(frozen=True)
class _Ground:
    """A ground that predictions of plans on a cluster rest on, with the level of what is known of its hardware."""

    name: str
    level: int
    calibration: Calibration | Literal["none"] | None = None  # as `plan_model` takes it


_SHEETS, _KERNELS = _Ground("data sheets", 0), _Ground("models of GPUs' kernels", 1)
_IN_PART = _Ground("data sheets, and models of GPUs' kernels", 0)
_MEASURED = _Ground("measurements of this machine", 2)


def _grounds(clusters: Sequence[Cluster], chosen: Calibration | Literal["none"] | None) -> dict[str, _Ground]:
    """Returns by the names of clusters what predicts their seconds. A calibration is taken where it knows the devices,
    or everywhere if it knows those of none, so that plans tell what is wrong.
    """
    grounds = {cluster.name: _ground(cluster, chosen) for cluster in clusters}
    if isinstance(chosen, Calibration):
        ground = _Ground(f"the calibration {chosen.name}", 2, chosen)
        grounds |= dict.fromkeys([cluster.name for cluster in clusters if _applies(chosen, cluster)] or grounds, ground)
    return grounds


def _ground(cluster: Cluster, chosen: Calibration | Literal["none"] | None) -> _Ground:
    if cluster.shared:
        return _MEASURED
    if chosen == NONE:
        return dataclasses.replace(_SHEETS, calibration="none")
    gpus = [gpu_of(host.device.name) is not None for host in cluster.hosts]
    return _KERNELS if all(gpus) else _IN_PART if any(gpus) else _SHEETS


def _applies(calibration: Calibration, cluster: Cluster) -> bool:
    try:
        calibration.applied_to(cluster)
    except ValueError:
        return False
    return True


def _unlike(grounds: Mapping[str, _Ground]) -> bool:
    return len({ground.name for ground in grounds.values()}) > 1


def _on_common_ground(
    planned: PlanningResult, cluster: Cluster, communication: str, grounds: Mapping[str, _Ground]
) -> PlanningResult | None:
    """Returns a plan as it is priced by the best of what is known of all clusters' hardware; None if it is already."""
    common = _SHEETS if min(ground.level for ground in grounds.values()) == _SHEETS.level else _KERNELS
    own, plan, costs = grounds[cluster.name], planned.plan, planned.table.stage_costs
    if not _unlike(grounds) or own.name in (common.name, _MEASURED.name):
        return None
    assert costs is not None, "a table that was priced keeps its prices"
    return estimate(
        planned.model, cluster, planned.run, given_stages(plan), name=plan.model or "", batch=plan.batch,
        communication=communication, calibration="none" if common is _SHEETS else None, runtime=costs.models.runtime,
    )  # fmt: skip


def _named(clusters: Sequence[str | Cluster]) -> tuple[dict[str, str], list[Cluster]]:
    """Returns the flags by which `plan` names each cluster, and the clusters."""
    if not clusters:
        raise ValueError("clusters is empty, but must name at least one; give a machine, or a cluster's file")
    flags, named = dict[str, str](), list[Cluster]()
    for item in clusters:
        cluster = named_cluster(item) if isinstance(item, str) else item
        if cluster.name in flags:
            raise ValueError(
                f"cluster is {cluster.name!r} twice, but must be another each time; leave one out, give another number "
                "of machines, or another name in its file"
            )
        flags[cluster.name] = f"--cluster {shlex.quote(item)}" if isinstance(item, str) else ""
        named.append(cluster)
    return flags, named


_VERSION = 1
_VERSION_KEY = Annotated[Literal[1], stated("1, the version of comparisons that this release writes"), WHOLE]


def comparison_format() -> Any:
    """Returns the `TypedDict` of a comparison's data: every key, and what it must be."""
    change = typed_dict_of(OrderChange)
    changes = Annotated[list[change], listed("a list of changes")]  # type: ignore[valid-type]
    return typed_dict_of(Comparison, {"version": _VERSION_KEY}, changes=changes)


def comparison_text(comparison: Comparison) -> str:
    """Returns the JSON text of a comparison."""
    changes = [data_of(change) for measure in MEASURES for change in comparison.changes(measure)]
    return json.dumps({"version": _VERSION, **data_of(comparison), "changes": changes}, indent=1) + "\n"
