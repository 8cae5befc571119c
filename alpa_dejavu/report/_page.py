"""The page: a template, its tables and its charts."""

from __future__ import annotations

import base64
import functools
import gzip
import html
from importlib import resources

import jinja2

from alpa_dejavu._util import units
from alpa_dejavu.layers.models import model_title
from alpa_dejavu.planning.inference import Phase, ServingPlan
from alpa_dejavu.planning.inference.serving_plan import phase_rows, plan_facts
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.problem import StagePlan
from alpa_dejavu.report import _tables as tables
from alpa_dejavu.report._charts import fullest_stage, lane_names, lanes, layer_costs, memory_chart
from alpa_dejavu.report._maps import cost_map, link_chart
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
    return template("page.html.j2").render(
        title=f"{model_title(plan.model)} on {plan.cluster}",
        facts=tables.facts(planned, measured),
        notes=tables.notes(plan),
        whole=None if steps is None else tables.whole_table(planned, steps),
        stage_table=tables.stage_table(planned, measured),
        runners_up=tables.runner_up_rows(planned),
        sensitivities=tables.sensitivity_rows(plan),
        layers=tables.layer_rows(planned),
        planning=tables.planning_rows(plan),
        origins=tables.origins(planned),
        lanes={name: lanes(timeline) for name, timeline in timelines.items()},
        lane_names=[
            f"<b>{name}</b><br>{html.escape(_place(stage))}"
            for name, stage in zip(lane_names(planned.timeline), plan.on_submeshes, strict=True)
        ],
        memory=memory_chart(planned.timeline),
        memory_parts=tables.memory_rows(plan),
        memory_stages=lane_names(planned.timeline),
        fullest=fullest_stage(planned.timeline),
        charts=charts,
    )


def _place(stage: StagePlan) -> str:
    first, *others = stage.hosts
    more = f" and {len(others)} more" if others else ""
    return f"{first}{more}, {units.counted(stage.submesh.num_devices, 'device')}"


def template(name: str) -> jinja2.Template:
    """Returns a page's template by the name of its file; whatever it is given is escaped."""
    files = resources.files("alpa_dejavu.report")
    loader = jinja2.FunctionLoader(lambda name: files.joinpath(name).read_text(encoding="utf-8"))
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.globals["packed_plotly"] = _packed_plotly
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "allow_nan": False}
    return environment.get_template(name)


@functools.cache
def _packed_plotly() -> str:
    """Returns plotly.js, gzipped and in base64: 1.9 MB in place of 4.7 MB."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


_PARTS = (
    ("computing", "forward"), ("cache", "backward"), ("collectives", "collectives"), ("transfers", "transfer"),
    ("waiting", "update"),
)  # fmt: skip
"""The parts of a phase, each with the class of its colour in the page's style."""


def serving_report(plan: ServingPlan) -> str:
    """Returns an HTML page about a plan for inference, which opens without network or scripts; names are escaped."""
    heads, *rows = phase_rows(plan)
    phases = ("first token", plan.first_token), ("each next token", plan.next_token)
    return template("serving.html.j2").render(
        title=f"Inference of {model_title(plan.model)} on {plan.cluster}",
        facts=plan_facts(plan),
        table={"heads": heads, "rows": rows},
        legend=_PARTS,
        bars=[(name, units.seconds(phase.seconds), _shares(phase)) for name, phase in phases],
    )


def _shares(phase: Phase) -> list[tuple[str, str, float]]:
    """Returns the name with its seconds, the colour and the percentage of each part of a phase that takes any time."""
    seconds = [getattr(phase, f"{name}_s") for name, _ in _PARTS]
    return [
        (f"{name}: {units.seconds(part)}", color, 100 * part / phase.seconds)
        for (name, color), part in zip(_PARTS, seconds, strict=True)
        if part > 0
    ]
