"""Plans one model on several clusters, by each saving: the flow of a comparison."""

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
from alpa_dejavu._util.format_fields import WHOLE, Count, Text, Words, listed, said
from alpa_dejavu._util.phases import phases_of
from alpa_dejavu.calibration import Calibration, check_choice
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning.by_name import plan_model
from alpa_dejavu.planning.given.comparison._cells import SAVINGS, Cell, Names, Saving, figures
from alpa_dejavu.planning.given.comparison._orders import (
    MEASURES,
    Change,
    Order,
    changes,
    joint_draws,
    orders,
    stages_alone,
)
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.planning.search._candidate import Candidate
from alpa_dejavu.planning.search._shapes import micro_batch_counts
from alpa_dejavu.planning.search.models.model_source import ModelSource
from alpa_dejavu.planning.search.models.named_model import attention_on, model_source
from alpa_dejavu.planning.search.models.traced_model import TracedModel
from alpa_dejavu.problem import Cluster, Model, NoPlanError
from alpa_dejavu.problem.checks import one_of
from alpa_dejavu.problem.limits import check_sizes

__all__ = ["Comparison", "compare", "comparison_format", "comparison_text"]


@final
@dataclasses.dataclass(frozen=True)
class _SavingInFile:
    """A way to keep less in memory, with the options of `alpa-dejavu plan` that allow it, in a comparison's file."""

    name: Text
    flags: Words


_SAVINGS_IN_FILES = Stored(
    tuple[_SavingInFile, ...], lambda savings: tuple(_SavingInFile(way.name, way.flags) for way in savings)
)


@final
@dataclasses.dataclass(frozen=True)
class Comparison:
    """A comparison of clusters for one model, by ways to keep less in memory.

    Attributes:
        model: the model's name.
        batch: the samples of a step.
        steps: for so many steps cells say what a training takes; None: they don't.
        clusters: the clusters' names, as they were given.
        savings: the ways to keep less.
        cells: a cell for each saving and cluster, all clusters of the first saving first.
        orders: the order of the clusters by seconds and by price, with each saving.
    """

    model: Words
    batch: Count
    steps: Annotated[Count | None, said("a whole number of at least 1, or null")]
    clusters: Names
    savings: Annotated[tuple[Saving, ...], _SAVINGS_IN_FILES, listed("a list of ways to keep less in memory")]
    cells: Annotated[tuple[Cell, ...], listed("a list of cells")]
    orders: Annotated[tuple[Order, ...], listed("a list of orders")]

    def cell(self, cluster: str, saving: str) -> Cell:
        """Returns the cell of a cluster and a saving, by their names.

        Raises:
            KeyError: there is none.
        """
        return {cell.place: cell for cell in self.cells}[cluster, saving]

    def order(self, saving: str, measure: str = "seconds") -> Order:
        """Returns the order of the clusters with a saving, by "seconds" or "price".

        Raises:
            KeyError: there is none.
        """
        return {(order.saving, order.measure): order for order in self.orders}[saving, measure]

    def changes(self, measure: str = "seconds") -> tuple[Change, ...]:
        """Returns the pairs of clusters whose order, by "seconds" or "price", changes with the saving."""
        found = [order for order in self.orders if order.measure == measure]
        return tuple(changes(found, self.clusters))


def compare(
    model: str | Callable[..., Any] | Model,
    clusters: Sequence[str | Cluster],
    batch: int,
    *,
    savings: Sequence[Saving] = SAVINGS,
    steps: int | None = None,
    layers: int | None = None,
    micro_batches: int | None = None,
    objective: str = "time",
    communication: str = "auto",
    calibration: str | os.PathLike[str] | Calibration | None = None,
    runtime: str | None = None,
    overlap: str | None = None,
    attention: str = "",
    cache: str | os.PathLike[str] | Literal[False] | None = None,
) -> Comparison:
    """Returns what a step of a model takes and costs on each of several clusters, by each way to keep less in memory.

    Each cell has the plan that `plan_model` finds with the saving's options. The model is traced and sharded once.

    Args:
        model: a name, a function or layers, as `plan_model` takes it.
        clusters: two at least: each a machine type, "2 x p3.16xlarge", the path of a file, or a `Cluster`.
        batch: samples of a step.
        savings: the ways to keep less that are compared.
        steps: so many steps are a training, whose hours and price are told; None: only those of a step are.
        layers: how many layers the model is cut into; None chooses.
        micro_batches: how many micro-batches the batch is cut into; None chooses.
        objective: "time" or "price": what each plan makes least.
        communication: a communication model's name, as `plan_model` takes it.
        calibration: measured figures of devices and links, as `plan_model` takes them, for all clusters.
        runtime: the training framework that plans are for, by its name, as `plan_model` takes it.
        overlap: whether devices communicate while they compute, by its name, as `plan_model` takes it.
        attention: how attention is priced and kept, "fused" or "plain", as `plan_model` takes it.
        cache: the folder of a cache of traced models; None: the user's own; False: none is read or written.

    Raises:
        ValueError: fewer than two clusters, one that is given twice, an unknown name, a broken file, sizes that can't
            be, or no cell could be planned. What hinders only some is told by their cells.
    """
    one_of("compare", "objective", objective, ("time", "price"))
    check_sizes(batch, layers, micro_batches)
    check_choice(calibration, "auto", communication)
    flags, named = _named(clusters)
    counts = micro_batch_counts(batch) if micro_batches is None else (micro_batches,)
    ways = {cluster.name: attention_on(cluster, runtime or "", attention) for cluster in named}
    by_way = {
        way: model_source(model, batch, counts, cache, runtime=runtime or "", attention=way)
        for way in dict.fromkeys(ways.values())
    }
    sources = {name: by_way[way] for name, way in ways.items()}
    source = sources[named[0].name]
    _ = source.training  # a model that there isn't is told before anything is planned
    ask = functools.partial(
        plan_model, batch=batch, micro_batches=micro_batches, layers=layers, objective=objective,
        communication=communication, calibration=calibration, runtime=runtime, overlap=overlap, attention=attention,
    )  # fmt: skip
    cells, plans = _grid(sources, named, flags, savings, ask, steps)
    hindered = [cell.why_not for cell in cells if cell.figures is None and cell.fits]
    if len(hindered) == len(cells):
        raise ValueError(hindered[0])
    rest_on = {cell.place: cell.figures.calibration for cell in cells if cell.figures is not None}
    return Comparison(
        source.name, batch, steps, tuple(cluster.name for cluster in named), tuple(savings), tuple(cells),
        tuple(orders(cells, joint_draws(plans, rest_on))),
    )  # fmt: skip


def _grid(
    sources: Mapping[str, ModelSource], named: Sequence[Cluster], flags: Mapping[str, str], savings: Sequence[Saving],
    ask: Callable[..., PlanningResult], steps: int | None,
) -> tuple[list[Cell], dict[tuple[str, str], Candidate]]:  # fmt: skip
    """Returns the cells of all clusters and savings, and the plans of those that have one."""
    cells, plans = list[Cell](), dict[tuple[str, str], Candidate]()
    for n, (saving, cluster) in enumerate(itertools.product(savings, named), 1):
        empty = Cell(cluster.name, saving.name, f"{flags[cluster.name]} {saving.flags}".strip(), None)
        source = sources[cluster.name]
        alone = source.anew() if isinstance(source, TracedModel) else source
        choices = {"remat": saving.remat, "zero": saving.zero, "offload": saving.offload}
        with phases_of(f"{n} of {len(savings) * len(named)} ({saving.name} on {cluster.name})"):
            cell, plan = _filled(empty, functools.partial(ask, alone, cluster, **choices), steps)
        cells.append(cell)
        if plan is not None:
            plans[cell.place] = plan
    return cells, plans


def _filled(cell: Cell, ask: Callable[[], PlanningResult], steps: int | None) -> tuple[Cell, Candidate | None]:
    """Returns a cell with the figures of the plan that is found, and that plan; or with why there is none."""
    try:
        planned = ask()
    except NoPlanError as error:
        return dataclasses.replace(cell, why_not=str(error), fits=False, remedies=error.remedies), None
    except ValueError as error:
        return dataclasses.replace(cell, why_not=str(error)), None
    return dataclasses.replace(cell, figures=figures(planned, steps)), stages_alone(planned)


def _named(clusters: Sequence[str | Cluster]) -> tuple[dict[str, str], list[Cluster]]:
    """Returns the flags by which `plan` names each cluster, and the clusters.

    Raises:
        ValueError: there are fewer than two, one of them twice, or what is wrong with a name or a file.
    """
    if len(clusters) < 2:
        given = ", ".join(one if isinstance(one, str) else one.name for one in clusters) or "not given"
        raise ValueError(f"cluster is {given}, but must be two at least, to be compared; name another one as well")
    flags, named = dict[str, str](), list[Cluster]()
    for one in clusters:
        cluster = named_cluster(one) if isinstance(one, str) else one
        if cluster.name in flags:
            raise ValueError(
                f"cluster is {cluster.name!r} twice, but must be another each time; leave one out, give another number "
                "of machines, or another name in its file"
            )
        flags[cluster.name] = f"--cluster {shlex.quote(one)}" if isinstance(one, str) else ""
        named.append(cluster)
    return flags, named


_VERSION = 1
_VERSION_KEY = Annotated[Literal[1], said("1, the version of comparisons that this release writes"), WHOLE]


def comparison_format() -> Any:
    """Returns the `TypedDict` of the data of a comparison's file: every key, and what it must be."""
    change: Any = typed_dict_of(Change)
    return typed_dict_of(
        Comparison, {"version": _VERSION_KEY}, changes=Annotated[list[change], listed("a list of changes")]
    )


def comparison_text(found: Comparison) -> str:
    """Returns the JSON text of a comparison."""
    changed = [data_of(change) for measure in MEASURES for change in found.changes(measure)]
    return json.dumps({"version": _VERSION, **data_of(found), "changes": changed}, indent=1) + "\n"
