"""Tables of stages: each column is told once, and the command line, reports and texts choose from them.

A new column is a `Column` here, entered in the tuples of the tables that show it: `PLANNED` is what `plan` and
`estimate` print, `REPORTED` the report's, `PROFILED` that of `profile`, and `BRIEF` that of `plan_table`, which README
and doctests show. `LEAVE` also names it, if a narrow terminal may leave it out.

A cell reads its figure from a `StageRow`. What `StagePlan` lacks is a field of `StageRow`, None where it isn't known:
`stage_rows` here fills in what follows from the plan as a whole, report/_tables.py what a simulation tells, and
cli/profile.py what a measurement tells. A figure that plan files shall keep is a field of `StagePlan`
(problem/_stage_plan.py), which planning/search/_ranking.py fills in; `make schemas` follows.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias, final

from alpa_dejavu._util import units
from alpa_dejavu._util.near_names import name_ranges
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.problem import ZERO_NAMES, DrawnSeconds, MeshConfig, Plan, StagePlan


class ShownTimes(Protocol):
    """The seconds of a pipeline stage that tables show."""

    @property
    def forward_s(self) -> float:
        """Returns those of its forward pass of one micro-batch."""

    @property
    def backward_s(self) -> float:
        """Returns those of its backward pass of one micro-batch."""

    @property
    def forward_send_s(self) -> float:
        """Returns those in which its activations of one micro-batch go to the next stage."""

    @property
    def per_step_s(self) -> float:
        """Returns those of its work once per step, such as gradient synchronisation."""


@final
@dataclasses.dataclass(frozen=True)
class StageRow:
    """A row of a table of a plan's stages: a stage, with its simulated and measured times where they are known."""

    number: int  # the stage's number in the plan, from 0
    stage: StagePlan  # the stage, as the plan has it
    busy_share: float | None = None  # `busy_share`, `bubble_share`: of the simulated step it computes, and waits
    bubble_share: float | None = None
    predicted: ShownTimes | None = None  # `predicted`, `measured`: seconds of a micro-batch, and once a step
    measured: ShownTimes | None = None
    computing_s: tuple[float, float] | None = None  # measured, of its computation alone, forward and backward


@final
@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table of a plan's stages."""

    name: str  # the heading above the column
    cell: Callable[[StageRow], str]  # returns the text of a row's cell, with its unit; "" if the row lacks the value
    is_figure: bool = True  # whether cells are figures, which are aligned to the right
    # A function that returns the text of the cell of many stages in one row; None: stages in whose cells it differs
    # don't stand in one row.
    of_many: Callable[[Sequence[StageRow]], str] | None = None


def stage_rows(plan: Plan) -> list[StageRow]:
    """Returns the rows of a table of a plan's stages, one for each stage, without simulated or measured times."""
    return [StageRow(n, stage) for n, stage in enumerate(plan.stages)]


def known_columns(columns: Sequence[Column], rows: Sequence[StageRow]) -> list[Column]:
    """Returns those columns of a table of a plan's stages of which some row knows something."""
    return [column for column in columns if any(map(column.cell, rows))]


def cells(columns: Sequence[Column], rows: Iterable[StageRow]) -> list[list[str]]:
    """Returns the text of each cell of a table of a plan's stages: a list for each row, with a text for each column."""
    return [[column.cell(row) for column in columns] for row in rows]


def folded_cells(columns: Sequence[Column], rows: Sequence[StageRow]) -> list[list[str]]:
    """Returns the cells of a table of stages, those that are equal but for their places and memory in one row."""
    alike = [column for column in columns if column.of_many is None]

    def key(row: StageRow) -> tuple[object, ...]:
        return row.stage.layers[1] - row.stage.layers[0], *(column.cell(row) for column in alike)

    runs = [list(run) for _, run in itertools.groupby(rows, key)]
    return [
        [column.cell(run[0]) if not run[1:] or column.of_many is None else column.of_many(run) for column in columns]
        for run in runs
    ]


def layers_text(stage: StagePlan) -> str:
    """Returns a stage's range of layers as text: its first and last layer, or its only one."""
    first, last = stage.layers
    return str(first) if first == last else f"{first}-{last}"


def drawn_text(drawn: DrawnSeconds | None) -> str:
    """Returns the mean and the deviation of drawn seconds as text; "" where they aren't known."""
    return "" if drawn is None else units.plus_minus(drawn.mean_s, drawn.deviation_s, units.seconds)


def mesh_text(shape: Iterable[int]) -> str:
    """Returns the shape of a mesh of devices as text.

    >>> mesh_text((2, 4))
    '2x4'
    """
    return "x".join(map(str, shape))


_Divided: TypeAlias = StagePlan | MeshConfig | Outline


def _context(of: _Divided) -> str:
    return str(of.context_parallel) if of.context_parallel > 1 else ""


def _experts(of: _Divided) -> str:
    if of.expert_parallel == 1 and not of.expert_tensor:
        return ""
    return f"{of.expert_parallel} (tensor {of.expert_tensor})" if of.expert_tensor else str(of.expert_parallel)


def _shard(of: _Divided) -> str:
    return str(of.sharded or "")


DEGREE_TEXTS: Mapping[str, Callable[[_Divided], str]] = {
    "context": _context, "expert": _experts, "shard": _shard,
}  # fmt: skip
"""What divides a stage beside its logical mesh, by its name, each as text; "": nothing."""
RECOMPUTED = {"none": "none", "selective": "selective", "layer": "full"}
"""The usual names of what backward passes compute again."""


def degrees_text(of: StagePlan | MeshConfig) -> str:
    """Returns the degrees of parallelism in which devices divide a stage, in the words of training frameworks.

    >>> degrees_text(MeshConfig((8, 1), 8, 1, context_parallel=2, expert_parallel=4))
    'tensor 1, data 4, context 2, expert 4'
    """
    return _degrees_text([of], [])


def parallelism_text(plan: Plan) -> str:
    """Returns a plan's degrees of parallelism, and what is shared and computed again, in the words of training
    frameworks; where stages differ, the least and the most, or each.
    """
    stages = plan.on_submeshes
    chunks = len(plan.stages) // len(stages)
    pipeline = [f"pipeline {len(stages)}", *([f"virtual stages {chunks}"] if chunks > 1 else [])]
    return f"{_degrees_text(stages, pipeline)}, {', '.join(_kept_texts(plan.stages))}"


def plan_text(plan: Plan) -> str:
    """Returns a plan in a line, to tell it from others: its parallelism, schedule, micro-batches and layers."""
    schedule = "" if len(plan.stages) == 1 else f", schedule {plan.schedule}"
    counts = units.counted(plan.num_micro_batches, "micro-batch", "micro-batches")
    return f"{parallelism_text(plan)}{schedule}, {counts}, {units.counted(plan.num_layers, 'layer')}"


def kept_text(of: StagePlan | MeshConfig) -> str:
    """Returns what data-parallel devices share of a stage, what is computed again, and what is offloaded, as text.

    >>> kept_text(MeshConfig((8, 1), 8, 1, remat="layer", zero=2))
    'ZeRO-1, recompute full'
    """
    return ", ".join(_kept_texts([of]))


def _degrees_text(stages: Sequence[StagePlan | MeshConfig], pipeline: Sequence[str]) -> str:
    more = {name: [text(of) or "1" for of in stages] for name, text in DEGREE_TEXTS.items() if name != "shard"}
    texts = [
        f"tensor {_span([of.tensor_parallel for of in stages])}",
        *pipeline,
        f"data {_span([of.data_parallel // of.context_parallel for of in stages])}",
        *(f"{name} {' or '.join(dict.fromkeys(degrees))}" for name, degrees in more.items() if {*degrees} != {"1"}),
    ]
    return ", ".join(texts)


def zero_text(stages: Sequence[StagePlan | MeshConfig]) -> str:
    """Returns what data-parallel devices share of stages, by its usual name, and in which groups.

    >>> zero_text([MeshConfig((8, 1), 8, 1, zero=2, sharded=4)])
    'ZeRO-1 in groups of 4'
    """
    groups = [of.sharded for of in stages]
    within = f" in groups of {_span(groups)}" if any(groups) else ""
    return " or ".join(dict.fromkeys(zero_name(of.zero) for of in stages)) + within


def zero_name(level: int) -> str:
    """Returns the usual name of a ZeRO level."""
    return f"ZeRO-{ZERO_NAMES[level]}" if level else "no ZeRO"


def _kept_texts(stages: Sequence[StagePlan | MeshConfig]) -> list[str]:
    again = " or ".join(dict.fromkeys(map(recomputed_text, stages)))
    offloads = [of.offloaded if isinstance(of, StagePlan) else of.offload for of in stages]
    kept = " or ".join(dict.fromkeys(offload.text for offload in offloads if offload.any))
    return [zero_text(stages), f"recompute {again}", *([f"offload {kept}"] if kept else [])]


def recomputed_text(of: StagePlan | MeshConfig) -> str:
    """Returns what the backward pass of a stage computes again, by its usual name, or that the model asks for it."""
    if of.remat == "none" and isinstance(of, StagePlan) and of.own_remat:
        return "by the model itself"
    return again_text(of.remat, of.remat_share)


def again_text(remat: str, share: float) -> str:
    """Returns what is computed again in a share of the blocks, by its usual name.

    >>> again_text("layer", 0.4)
    'full of 40% of the blocks'
    """
    return RECOMPUTED[remat] + ("" if share == 1 else f" of {share:.0%} of the blocks")


def _span(values: Sequence[int]) -> str:
    return units.span(values, "{:.0f}".format)


def _hosts(rows: Iterable[StageRow]) -> str:
    return name_ranges(host for row in rows for host in row.stage.hosts)


def _headroom(rows: Sequence[StageRow]) -> str:
    left = [row.stage.memory_limit_bytes - row.stage.memory_bytes for row in rows]
    return units.span(left, units.size) if min(left) >= 0 else f"MISSING {units.size(-min(left))}"


def _hidden(row: StageRow) -> str:
    """Returns the seconds of collectives that hide behind computing."""
    stage = row.stage
    if not (stage.hidden_s or stage.hidden_per_step_s):
        return ""
    once = f"{units.seconds(stage.hidden_per_step_s)} a step"
    return f"{units.seconds(stage.hidden_s)} + {once}" if stage.hidden_s else once


def _host_bytes(row: StageRow) -> str:
    """Returns what the hosts keep for each device, in memory and on drives."""
    offload = row.stage.offload
    if offload is None:
        return ""
    drives = f" + {units.size(offload.nvme_bytes)}" if offload.nvme_bytes else ""
    missing = f", MISSING {units.size(offload.missing_bytes)}" if offload.missing_bytes else ""
    return units.size(offload.host_bytes) + drives + missing


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _degree(name: str, text: Callable[[StagePlan | MeshConfig], str]) -> Column:
    return Column(name, lambda row: text(row.stage), False)


def _figure(name: str, of: Callable[[StageRow], float | None], text: Callable[[float], str] = units.seconds) -> Column:
    def cell(row: StageRow) -> str:
        value = of(row)
        return "" if value is None else text(value)

    return Column(name, cell)


def _spanned(name: str, of: Callable[[StageRow], float | None], text: Callable[[float], str]) -> Column:
    """A figure in which stages may differ that stand in one row."""

    def of_many(rows: Sequence[StageRow]) -> str:
        values = [value for value in map(of, rows) if value is not None]
        return units.span(values, text) if values else ""

    return dataclasses.replace(_figure(name, of, text), of_many=of_many)


def _timed(name: str, of: str, figure: str) -> Column:
    """A figure of the "predicted" or the "measured" times."""
    return _figure(name, lambda row: getattr(getattr(row, of), figure, None))


def _measured_to_predicted(row: StageRow) -> str:
    if row.predicted is None or row.measured is None:
        return ""
    predicted, measured = (times.forward_s + times.backward_s for times in (row.predicted, row.measured))
    return f"{measured / predicted:.2f}" if predicted > 0 else "–"


_PLACE = (
    Column("stage", lambda row: str(row.number), False, lambda rows: f"{rows[0].number}-{rows[-1].number}"),
    Column(
        "layers",
        lambda row: layers_text(row.stage),
        False,
        lambda rows: f"{rows[0].stage.layers[0]}-{rows[-1].stage.layers[1]}",
    ),
)
_MESHES = (
    Column("submesh", lambda row: mesh_text((row.stage.submesh.num_hosts, row.stage.submesh.devices_per_host)), False),
    Column("logical", lambda row: mesh_text(row.stage.logical_mesh), False),
)
_HOSTS = Column("hosts", lambda row: _hosts([row]), False, _hosts)
_CHOICES = (
    *itertools.starmap(_degree, DEGREE_TEXTS.items()),
    Column("remat", lambda row: row.stage.remat_text, False),
    Column("ZeRO", lambda row: ZERO_NAMES[row.stage.zero], False),
)
_TIMES = (
    _figure("compute", lambda row: row.stage.compute_s),
    _figure("collectives", lambda row: row.stage.collective_s),
    _figure("transfers", lambda row: row.stage.boundary_s),
    _figure("once a step", lambda row: row.stage.per_step_s),
)
_DRAWN = Column("mean ± deviation", lambda row: drawn_text(row.stage.drawn))
_SHARES = (
    _spanned("computing", lambda row: row.busy_share, _percent),
    _spanned("bubbles", lambda row: row.bubble_share, _percent),
)
_HIDDEN = Column("hidden", _hidden, True)
_MEMORY = _spanned("memory", lambda row: row.stage.memory_bytes, units.size)
_HEADROOM = Column("headroom", lambda row: _headroom([row]), of_many=_headroom)
_OFFLOAD = Column("offload", lambda row: row.stage.offloaded.text if row.stage.offloaded.any else "", False)
_OF_HOST = Column("of the host", _host_bytes)
_BESIDE = (
    _timed("measured forward", "measured", "forward_s"),
    _timed("measured backward", "measured", "backward_s"),
    Column("measured to predicted", _measured_to_predicted),
)

BRIEF = (*_PLACE, *_MESHES, _HOSTS, *_TIMES, _MEMORY, _HEADROOM)
"""The columns of `plan_table`: seconds are of one micro-batch, both ways, but for what comes once a step."""
PLANNED = (*_PLACE, *_MESHES, _HOSTS, *_CHOICES, *_TIMES, _DRAWN, _HIDDEN, _MEMORY, _HEADROOM, _OFFLOAD, _OF_HOST)
"""The columns of a plan on the command line; those of which no row knows anything are left out."""
LEAVE = (
    "logical", *DEGREE_TEXTS, "ZeRO", "once a step", "transfers", "remat", "headroom", "hidden", "of the host",
    "offload", "submesh", "collectives",
)  # fmt: skip
"""The columns that are left out first where there isn't room for all, in this order."""
REPORTED = (
    *_PLACE, *_MESHES, _HOSTS, *_CHOICES, *_TIMES, _MEMORY, _HEADROOM, _DRAWN, *_SHARES, _HIDDEN, _OFFLOAD, _OF_HOST,
    *_BESIDE,
)  # fmt: skip
"""The columns of a report; those of which no row knows anything are left out."""
PROFILED = (
    *_PLACE,
    _timed("forward", "predicted", "forward_s"),
    _timed("→", "measured", "forward_s"),
    _figure("computing", lambda row: None if row.computing_s is None else row.computing_s[0]),
    _timed("backward", "predicted", "backward_s"),
    _timed("→", "measured", "backward_s"),
    _figure("computing", lambda row: None if row.computing_s is None else row.computing_s[1]),
    _timed("to next", "predicted", "forward_send_s"),
    _timed("→", "measured", "forward_send_s"),
    _timed("once a step", "predicted", "per_step_s"),
    _timed("→", "measured", "per_step_s"),
)
"""The columns of a profile; → stands before the measured seconds, next to those that were predicted."""
