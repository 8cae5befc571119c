"""The page: a template, its tables and its charts."""

from __future__ import annotations

import html

from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.problem import StagePlan
from alpa_dejavu.report._charts import fullest_stage, layer_costs, memory_chart
from alpa_dejavu.report._cost_map import cost_map
from alpa_dejavu.report._lanes import lane_names, lanes
from alpa_dejavu.report._link_chart import link_chart
from alpa_dejavu.report._tables import (
    facts,
    layer_rows,
    memory_rows,
    notes,
    origins,
    planning_rows,
    runner_up_rows,
    sensitivity_rows,
    stage_table,
    whole_table,
)
from alpa_dejavu.report._template import template
from alpa_dejavu.simulation.step import Timeline


def html_report(planned: PlanningResult, measured: Timeline | None = None, steps: int | None = None) -> str:
    """Returns an HTML page about a plan, which opens in a browser without network.

    It shows the plan's table, its timeline, its memory, the cost table with the chosen cut, the model's layers, the
    runners-up, and where the figures come from; where links between hosts are unlike, their map with the stages on it,
    too.

    Args:
        planned: the plan with all that it was made from.
        measured: a simulation of the same stages with measured times, shown beside the predicted one.
        steps: the page says what a training of so many steps takes; None: it doesn't.

    Returns:
        HTML, of about 2 MB: most of it is plotly.js. Whatever users named is escaped.

    Raises:
        ValueError: the timelines have another number of stages than the plan.
    """
    plan = planned.plan
    for timeline in (planned.timeline, measured):
        if timeline is not None and timeline.num_stages != len(plan.stages):
            raise ValueError(
                f"the plan has {len(plan.stages)} stages and a timeline {timeline.num_stages}: simulate its stages"
            )
    title = f"{plan.model or 'A model'} on {plan.cluster}"
    timelines = {"predicted": planned.timeline} | ({} if measured is None else {"measured": measured})
    charts = {
        "costs": cost_map(planned),
        "layers": layer_costs(planned),
    }
    links = link_chart(planned)
    if links is not None:
        charts["links"] = links
    return template("page.html.j2").render(
        title=title,
        facts=facts(planned, measured),
        notes=notes(plan),
        whole=None if steps is None else whole_table(planned, steps),
        stage_table=stage_table(planned, measured),
        runners_up=runner_up_rows(planned),
        sensitivities=sensitivity_rows(plan),
        layers=layer_rows(planned),
        planning=planning_rows(plan),
        origins=origins(planned),
        lanes={name: lanes(timeline) for name, timeline in timelines.items()},
        lane_names=[
            f"<b>{name}</b><br>{html.escape(_place(stage))}"
            for name, stage in zip(lane_names(planned.timeline), plan.on_submeshes, strict=True)
        ],
        memory=memory_chart(planned.timeline),
        memory_parts=memory_rows(plan),
        memory_stages=lane_names(planned.timeline),
        fullest=fullest_stage(planned.timeline),
        charts=charts,
    )


def _place(stage: StagePlan) -> str:
    first, *others = stage.hosts
    count = stage.submesh.num_devices
    where = f"{first} and {len(others)} more" if others else first
    return f"{where}, {count} device" + ("s" if count > 1 else "")
