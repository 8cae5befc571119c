"""The page: a template, its tables and its charts."""

from __future__ import annotations

import base64
import dataclasses
import functools
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, final

import jinja2

from alpa_dejavu._util import units
from alpa_dejavu._util.extras import from_extra
from alpa_dejavu._util.near_names import name_ranges
from alpa_dejavu.layers.models import model_title
from alpa_dejavu.planning.given.footing import by_ground
from alpa_dejavu.planning.inference import Phase, ServingPlan
from alpa_dejavu.planning.inference.serving_plan import phase_rows, plan_facts
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.report import _tables as tables
from alpa_dejavu.report._charts import fullest_stage, lanes, layer_costs, memory_chart
from alpa_dejavu.report._maps import cost_map, link_chart
from alpa_dejavu.report._style import COLORS, color_of
from alpa_dejavu.report.trace_events import lane_names
from alpa_dejavu.simulation.step import Timeline


def html_report(planned: PlanningResult, measured: Timeline | None = None, steps: int | None = None) -> str:
    """Returns an HTML page about a plan, of about 2 MB, mostly plotly.js, which opens without network; names are
    escaped.

    `measured` is a simulation of the same stages with measured times, shown beside the predicted one. With `steps` the
    page says what a training takes. Raises ValueError if timelines have another number of stages than the plan.
    """
    plan, timelines = (
        planned.plan,
        {"predicted": planned.timeline} | ({} if measured is None else {"measured": measured}),
    )
    for timeline in timelines.values():
        if timeline.num_stages != len(plan.stages):
            raise ValueError(
                f"the plan has {len(plan.stages)} stages and a timeline {timeline.num_stages}: simulate its stages"
            )
    links = link_chart(planned)
    charts = {"costs": cost_map(planned), "layers": layer_costs(planned)} | ({} if links is None else {"links": links})
    return render(
        "page.html.j2",
        title=f"{model_title(plan.model)} on {plan.cluster}",
        facts=tables.facts(planned, measured),
        notes=tables.notes(plan),
        sureness=_sureness(planned),
        whole=None if steps is None else tables.whole_table(planned, steps),
        stage_table=tables.stage_table(planned, measured),
        runners_up=tables.runner_up_rows(planned),
        sensitivities=tables.sensitivity_rows(plan),
        layers=tables.layer_rows(planned),
        planning=tables.planning_rows(plan),
        origins=tables.origins(planned),
        lanes={name: lanes(timeline) for name, timeline in timelines.items()},
        lane_names=[
            (name, name_ranges(stage.hosts), units.counted(stage.submesh.num_devices, "device"))
            for name, stage in zip(lane_names(planned.timeline), plan.on_submeshes, strict=True)
        ],
        legend=_legend(planned.timeline),
        blocking=planned.timeline.blocking,
        memory=memory_chart(planned.timeline),
        memory_parts=tables.memory_rows(plan),
        memory_stages=lane_names(planned.timeline),
        fullest=fullest_stage(planned.timeline),
        charts=charts,
    )


def _sureness(planned: PlanningResult) -> dict[str, Any] | None:
    """Returns what the card on uncertainty shows: the step's interval, how sure the choice is, and the grounds of both;
    None where nothing was drawn.
    """
    sure = planned.confidence
    if sure is None:
        return None
    parts = tables.grounds(planned)
    return {
        "facts": sure.facts,
        "bar": [(f"{name}: {100 * share:.0f} %", color_of(n), 100 * share)
                for n, (name, share, _) in enumerate(by_ground(parts))],
        "grounds": tables.ground_rows(parts),
    }  # fmt: skip


def _legend(timeline: Timeline) -> list[tuple[str, str]]:
    """Returns the kinds of tasks that a timeline may show, each with the name of its colour."""
    kinds = [("forward", "forward"), ("backward", "backward")]
    kinds += [("backward by weights", "weight")] if timeline.schedule.splits else []
    kinds += [("collectives", "collective"), ("transfer", "transfer")]
    kinds += [("held up by a transfer", "held")] if timeline.blocking else []
    return [*kinds, ("update", "update"), ("bubble", "empty")]


@final
@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a page: its title, sentences about it, a chart if it has one, and tables."""

    title: str
    about: str
    chart: Mapping[str, Any] | None = None
    tables: Sequence[Mapping[str, Any]] = ()  # each with "heads" and "rows", texts


def sections_page(title: str, lead: str, facts: Sequence[tuple[str, str]], sections: Sequence[Section]) -> str:
    """Returns an HTML page of sections, which opens without network; names are escaped, but for those in charts."""
    charts = {f"chart-{n}": section.chart for n, section in enumerate(sections) if section.chart is not None}
    return render("sections.html.j2", title=title, lead=lead, facts=facts, sections=sections, charts=charts)


def render(name: str, **shown: Any) -> str:
    """Returns a page of a template by the name of its file; whatever it is given is escaped."""
    files = resources.files("alpa_dejavu.report")
    loader = jinja2.FunctionLoader(lambda name: files.joinpath(name).read_text(encoding="utf-8"))
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.globals |= {"packed_plotly": _packed_plotly, "packed": _packed_data, "colors": COLORS}
    environment.filters["parts"] = _parts
    return environment.get_template(name).render(**shown)


def _parts(title: str) -> list[str]:
    """Returns the parts between which a narrow page may break a title: those of its names that are too long for it."""
    parts = re.split(r"(\s+)", title)
    return [part for name in parts for part in (_PARTS_OF_NAME.split(name) if len(name) > _LONG else [name])]


def _packed_data(**data: Any) -> str:
    """Returns what a page's scripts draw as JSON, gzipped and in base64, which needs no escaping."""
    return _packed(json.dumps(data, separators=(",", ":"), allow_nan=False).encode())


@functools.cache
def _packed_plotly() -> str:
    """Returns plotly.js, gzipped and in base64: 1.9 MB in place of 4.7 MB."""
    offline = from_extra("plots", "plotly.offline")
    return _packed(offline.get_plotlyjs().encode())


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


_LONG, _PARTS_OF_NAME = 24, re.compile(r"(?<=[/_:,.=-])(?=\w)")
_PARTS = (
    ("computing", "forward"), ("cache", "backward"), ("collectives", "collective"), ("transfers", "transfer"),
    ("waiting", "update"),
)  # fmt: skip
"""The parts of a phase, each with the class of its colour in the page's style."""


def serving_report(plan: ServingPlan) -> str:
    """Returns an HTML page about a plan for inference, which opens without network or scripts; names are escaped."""
    heads, *rows = phase_rows(plan)
    phases = ("first token", plan.first_token), ("each next token", plan.next_token)
    facts = plan_facts(plan)
    return render(
        "serving.html.j2",
        title=f"Inference of {model_title(plan.model)} on {plan.cluster}",
        facts=[fact for fact in facts if fact[0] != "note"],
        notes=[text for name, text in facts if name == "note"],
        data={"heads": heads, "rows": rows, "kept": heads[:3]},
        legend=[(name, f"var(--{color})") for name, color in _PARTS],
        bars=[(name, units.seconds(phase.seconds), _shares(phase)) for name, phase in phases],
    )


def _shares(phase: Phase) -> list[tuple[str, str, float]]:
    """Returns the name with its seconds, the colour and the percentage of each part of a phase that takes any time."""
    seconds = [getattr(phase, f"{name}_s") for name, _ in _PARTS]
    return [
        (f"{name}: {units.seconds(part)}", f"var(--{color})", 100 * part / phase.seconds)
        for (name, color), part in zip(_PARTS, seconds, strict=True)
        if part > 0
    ]
