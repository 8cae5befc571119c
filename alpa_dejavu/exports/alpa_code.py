"""A plan as the lines of Python that run it with Alpa."""

from __future__ import annotations

import dataclasses
import pprint
from typing import Any

from alpa_dejavu.clusters.placement import alpas_hosts
from alpa_dejavu.exports._outline import one_line
from alpa_dejavu.plans.plan_file import plan_data
from alpa_dejavu.problem import Plan, StagePlan

_OWN_OPTION = "alpa_dejavu.DejavuStageOption(plan=alpa_dejavu.plan_of(PLAN))"


def alpa_code(plan: Plan) -> str:
    """Returns Python code that makes `method`, Alpa's `PipeshardParallel` that runs exactly a given plan.

    Where Alpa would put stages on other hosts, or refuse to, the code has the plan as data for a `DejavuStageOption`,
    without contingencies. Raises ValueError if Alpa can't run the plan.
    """
    if not plan.runs_on_alpa:
        raise ValueError(
            f"the plan of {plan.strategy or plan.schedule} is estimated only, and Alpa can't run it: there is no "
            "Python of it to write; leave that out, or plan by another strategy, by a schedule of Alpa's, without "
            "reduction servers, offload and overlap"
        )
    layer_option = _layer_option(plan)
    data, stage_option = ("", _manual_option(plan)) if _alpa_places_it(plan) else (_written_out(plan), _OWN_OPTION)
    ours = "import alpa_dejavu\n" if "alpa_dejavu" in layer_option + stage_option else ""
    batch = "" if plan.batch is None else f", batch {plan.batch}"
    title = one_line(f"{plan.model or 'A model'} on {plan.cluster}{batch}: {plan.predicted}.")
    return (
        f'"""{title}"""\n\n'
        f"import alpa\n{ours}\n"
        f'{data}alpa.init("ray")\n\n'
        "method = alpa.PipeshardParallel(\n"
        f"    num_micro_batches={plan.num_micro_batches},\n"
        f"    pipeline_schedule={plan.schedule!r},\n"
        f"    layer_option={layer_option},\n"
        f"    stage_option={stage_option},\n"
        ")\n"
        "# step = alpa.parallelize(train_step, method=method)\n"
    )


def alpa_options(stage: StagePlan) -> dict[str, Any]:
    """Returns the options of Alpa's auto-sharding pass for a stage by name, always with those for its ZeRO level."""
    return {**stage.options, "prefer_reduce_scatter": stage.zero == 2, "force_zero_stage_3": stage.zero == 3}


def remat_layers(plan: Plan) -> list[int]:
    """Returns the numbers of the layers that are in stages of a plan with rematerialization."""
    stages = zip(plan.stages, plan.layer_ids, strict=True)
    return [layer for stage, layers in stages if stage.remat == "layer" for layer in layers]


def _alpa_places_it(plan: Plan) -> bool:
    """Whether Alpa, which knows no names, gives each stage the hosts that the plan names, in their order."""
    hosts = plan.hardware.hosts if plan.hardware is not None and plan.hardware.alike else ()
    placed = alpas_hosts([stage.submesh for stage in plan.stages], len(hosts), hosts[0].num_devices) if hosts else None
    names = [tuple(hosts[number].name for number in numbers) for numbers in placed or ()]
    return names == [stage.hosts for stage in plan.stages]


def _manual_option(plan: Plan) -> str:
    rows = {
        "forward_stage_layer_ids": plan.layer_ids,
        "submesh_physical_shapes": [(s.submesh.num_hosts, s.submesh.devices_per_host) for s in plan.stages],
        "submesh_logical_shapes": [stage.logical_mesh for stage in plan.stages],
        "submesh_autosharding_option_dicts": [alpa_options(stage) for stage in plan.stages],
    }
    fields = "".join(f"        {name}={_literal(value, len(name) + 9)},\n" for name, value in rows.items())
    return f"alpa.ManualStageOption(\n{fields}    )"


def _written_out(plan: Plan) -> str:
    data = pprint.pformat(plan_data(dataclasses.replace(plan, contingencies={})), width=120, sort_dicts=False)
    return f"# Alpa's own ManualStageOption can't say on which hosts stages are.\nPLAN = {data}\n\n"


def _layer_option(plan: Plan) -> str:
    """Alpa's own option where it does, else ours: Alpa's has remat in all layers or in none, and not our marks."""
    remat = remat_layers(plan)
    number = plan.num_layers if plan.layer_option == "auto" else None
    if number is None or (remat and len(remat) < number):
        return f"alpa_dejavu.DejavuLayerOption(layer_num={number}, remat_layers={_literal(remat, 8)})"
    mode = "coarse_grained_remat" if remat else "none"
    return f"alpa.AutoLayerOption(layer_num={number}, remat_mode={mode!r})"


def _literal(value: Any, indent: int) -> str:
    """A list whose elements are all alike is written as one of them, times their number."""
    times = ""
    if len(value) > 1 and all(element == value[0] for element in value):
        value, times = value[:1], f" * {len(value)}"
    lines = pprint.pformat(value, width=110 - indent, compact=True, sort_dicts=False).splitlines()
    return ("\n" + " " * indent).join(lines) + times
