"""`alpa-dejavu resilience`."""

from __future__ import annotations

import json
import pathlib
from typing import TYPE_CHECKING, Any

import click

from alpa_dejavu.cli.commands import Command, option
from alpa_dejavu.cli.files import OUTPUT, PAGE, check_outputs, takes_stdout, write_output
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import PLAN_FILE
from alpa_dejavu.cli.table import new_table
from alpa_dejavu.cli.working import working
from alpa_dejavu.plans.plan_file import read_plan
from alpa_dejavu.problem import Plan

if TYPE_CHECKING:
    from alpa_dejavu.training.resilience import Parts, Resilience
    from alpa_dejavu.training.resilience.critical import ChosenParts
    from alpa_dejavu.training.resilience.page import Rows

_KINDS = ("neurons", "filters", "heads", "layers", "weights", "activations", "values")
_FORMATS = ("float32", "bfloat16", "float16", "int8")


@click.command(
    cls=Command,
    examples=(
        "alpa-dejavu resilience digits.resilient:plain --but out --html plain.html",
        "alpa-dejavu resilience my_model:made --fault stuck --share 0.1 --masks 100",
    ),
    rests_on="The network is run on the inputs that the function returns, with random masks.",
)
@click.argument("function", metavar="MODULE:FUNCTION")
@option("--html", "html_path", type=PAGE, metavar="FILE", help="Write a page with curves, heat maps and tables.")
@option("--json", "json_path", type=OUTPUT, metavar="FILE", help="Write all figures.")
@option("--parts", "kind", type=click.Choice(_KINDS), default="neurons", show_default=True, help="Parts that fail.")
@option("--only", multiple=True, metavar="PATH",
        help="Layers whose parts may fail, such as blocks/*/up; may be repeated.")  # fmt: skip
@option("--but", multiple=True, metavar="PATH", help="Layers whose parts can't fail; may be repeated.")
@option("--fault", "faults", multiple=True, default=("removed",), show_default=True, metavar="NAME",
        help="Fault: removed, zeroed, stuck, flipped or noisy; may be repeated.")  # fmt: skip
@option("--share", "shares", multiple=True, type=float, default=(0.02, 0.05, 0.1, 0.2, 0.3, 0.5), show_default=True,
        help="Share of the parts that fails, from 0 to 1; may be repeated.")  # fmt: skip
@option("--masks", default=50, show_default=True, help="Random masks for each share.")
@option("--by-layer", is_flag=True, help="Let each layer fail alone, too.")
@option("--critical", "k", default=5, show_default=True, help="Critical and harmless parts to list; 0 lists none.")
@option("--bits", "formats", multiple=True, rare=True, type=click.Choice(_FORMATS),
        help="Number format whose flipped bits are mapped; may be repeated.")  # fmt: skip
@option("--plan", "plan_path", rare=True, type=PLAN_FILE, metavar="PLAN.json", help="Plan whose stages are skipped.")
@option("--blocks", rare=True, default="blocks/*", show_default=True, metavar="PATH", help="Model's blocks for --plan.")
@option("--seed", rare=True, default=0, show_default=True, help="Seed of the masks.")
def resilience(
    function: str, html_path: pathlib.Path | None, json_path: pathlib.Path | None, kind: str, only: tuple[str, ...],
    but: tuple[str, ...], faults: tuple[str, ...], shares: tuple[float, ...], masks: int, by_layer: bool, k: int,
    formats: tuple[str, ...], plan_path: pathlib.Path | None, blocks: str, seed: int,
) -> None:  # fmt: skip
    """Says which parts of a trained network may fail without harm.

    The function returns `(apply_fn, params, (inputs, targets))`.
    """
    check_outputs(html_path, json_path)
    plan = None if plan_path is None else read_plan(plan_path)
    with working(f"loading {function}"):
        from alpa_dejavu.training.resilience import resilience as measure

        subject = _subject(function)
    with working("striking parts"):
        parts = _parts(subject[1], kind, only, but)
        measured = measure(*subject, faults, parts=parts, shares=shares, masks=masks, by_layer=by_layer, seed=seed)
    with working("looking for critical parts"):
        chosen = _chosen(subject, parts, k)
    stages = None if plan is None else _stages(subject, plan, blocks)
    to = console(takes_stdout(html_path, json_path))
    _print(function, measured, chosen, stages, to)
    written = []
    if html_path is not None:
        from alpa_dejavu.training.resilience.bit_map import bit_map
        from alpa_dejavu.training.resilience.page import resilience_page

        with working("flipping bits"):
            maps = [bit_map(*subject, dtype, seed=seed) for dtype in formats]
        written += write_output(html_path, resilience_page(function, measured, maps=maps, chosen=chosen, stages=stages))
    if json_path is not None:
        written += write_output(json_path, json.dumps(measured.data(), indent=1) + "\n")
    to.wrote(written)


def _subject(function: str) -> tuple[Any, Any, Any]:
    """Returns what the named function returns. Raises ValueError if there is none, or it returns something else."""
    from alpa_dejavu.layers import resolve

    if ":" not in function:
        raise ValueError(f"MODULE:FUNCTION is {function!r}, but must name a function of a module; give it as "
                         "my_model:made")  # fmt: skip
    returned = resolve(function)()
    if not (isinstance(returned, tuple) and len(returned) == 3 and callable(returned[0])):
        kind = type(returned).__name__
        raise ValueError(
            f"{function} returned a {kind}, but must return (apply_fn, params, (inputs, targets)); return these three"
        )
    return returned


def _parts(params: Any, kind: str, only: tuple[str, ...], but: tuple[str, ...]) -> str | Parts:
    from alpa_dejavu.training.resilience import find_parts

    if kind in ("activations", "values"):
        if only or but:
            raise ValueError(f"--parts is {kind}, but must be of parameters where --only or --but is given; leave "
                             "these out")  # fmt: skip
        return kind
    return find_parts(params, kind, only=only or None, but=but)


def _chosen(subject: tuple[Any, Any, Any], parts: str | Parts, k: int) -> dict[str, ChosenParts]:
    from alpa_dejavu.training.resilience import Parts
    from alpa_dejavu.training.resilience.critical import chosen_parts

    # Each step of the greedy choice tries all parts: of many, only those that gradients name are worth it.
    by = "greedy" if isinstance(parts, Parts) and parts.count <= 512 else "gradient"
    if not k or not isinstance(parts, Parts):
        return {}
    k = min(k, parts.count)
    return {
        f"the {k} that harm {'least' if least else 'most'}": chosen_parts(*subject, parts, k, by=by, least=least)
        for least in (False, True)
    }


def _stages(subject: tuple[Any, Any, Any], plan: Plan, blocks: str) -> Rows:
    from alpa_dejavu.training.resilience import find_parts
    from alpa_dejavu.training.resilience import resilience as measure
    from alpa_dejavu.training.resilience.outages import stage_parts
    from alpa_dejavu.training.resilience.page import stage_rows
    from alpa_dejavu.training.resilience.spares import blocks_of_stages

    blocks_by_stage = blocks_of_stages(plan, find_parts(subject[1], "layers", only=blocks).groups)
    filled = {stage: groups for stage, groups in blocks_by_stage.items() if groups}
    outages = measure(*subject, parts=stage_parts(subject[1], filled), shares=(1.0,), masks=1, by_layer=True)
    return stage_rows(plan, blocks_by_stage, {stage: outages.curve("removed", stage)[0] for stage in filled})


def _print(function: str, measured: Resilience, chosen: dict[str, ChosenParts], stages: Rows | None, to: Any) -> None:
    from alpa_dejavu.training.resilience.page import chosen_rows, curve_rows

    to.print(f"{function}: {measured.base:.4f} without faults")
    for heads, rows in (
        curve_rows(measured),
        *([chosen_rows(chosen)] if chosen else []),
        *([stages] if stages else []),
    ):
        table = new_table(heads[:2], heads[2:], ())
        for row in rows:
            table.add_row(*row)
        to.print()
        to.print(table)
