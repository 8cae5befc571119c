"""`alpa-dejavu plan --inference`: its options, and the table of both phases."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from alpa_dejavu.cli.commands import F, option
from alpa_dejavu.cli.files import check_outputs, takes_stdout, write_output
from alpa_dejavu.cli.models import has_own_length, is_model_file, model_text, sizes_of_model
from alpa_dejavu.cli.output import Pages, console
from alpa_dejavu.cli.parameters import INFERENCE, LateChoice
from alpa_dejavu.cli.ray_cluster import connected
from alpa_dejavu.cli.table import new_table
from alpa_dejavu.cli.working import working

if TYPE_CHECKING:
    from alpa_dejavu.planning.inference import Lengths, ServingPlan

_PROMPT, _OUTPUT = 512, 128
_SERVES: Final = (
    "model", "cluster", "hosts", "batch", "risk", "memory_margin", "communication", "calibration", "runtime", "overlap",
    "cache", "json_path", "html_path",
)  # fmt: skip
"""The other options of `plan` that say something about inference."""
_TRAINS: Final = ("train_last", "lora", "frozen", "optimizer", "precision")
"""The options that say how a transformer is trained; inference is in half precision."""
_TOKENS = click.IntRange(min=1)
_OPTIONS: Final = (
    option(
        "--inference",
        group=INFERENCE,
        type=LateChoice("planning.inference:OBJECTIVES"),
        help="Plan inference instead of training.",
    ),
    *(
        option(name, *parameter, group=INFERENCE, rare=True, type=kind, metavar=metavar, help=text)
        for name, parameter, kind, metavar, text in (
            ("--prompt-tokens", (), _TOKENS, "N", f"Tokens of a prompt.  [default: {_PROMPT}]"),
            ("--output-tokens", (), _TOKENS, "N", f"Tokens of an output.  [default: {_OUTPUT}]"),
            ("--lengths", ("lengths_path",), click.Path(path_type=pathlib.Path, dir_okay=False), "FILE",
             "CSV file of prompt and output lengths, with the columns prompt, output and weight."),
            ("--latency-limit", (), float, "SECONDS", "Longest time of each output token (TPOT)."),
            ("--ttft-limit", (), float, "SECONDS", "Longest time to the first token (TTFT)."),
            ("--tensor-parallel", (), _TOKENS, "N", "Tensor-parallel degree.  [default: chosen]"),
            ("--stages", (), _TOKENS, "N", "Pipeline-parallel degree.  [default: chosen]"),
            ("--cache-bytes-per-token", (), float, "BYTES",
             "Bytes of keys and values of a token in all layers, for a function of your own."),
        )
    ),
)  # fmt: skip
_NAMES: Final = (
    "prompt_tokens", "output_tokens", "lengths_path", "latency_limit", "ttft_limit", "tensor_parallel", "stages",
    "cache_bytes_per_token",
)  # fmt: skip


def inference_options(command: F) -> F:
    """Adds the options of inference to the command `plan`; with `--inference` it then plans inference, not training."""

    @functools.wraps(command)
    def chosen(inference: str | None, **options: Any) -> Any:
        asked = {name: options.pop(name) for name in _NAMES}
        context = click.get_current_context()
        if inference is not None:
            others = [name for name in (*options, *_TRAINS) if name not in _SERVES]
            _refuse(context, others, "says nothing about inference; leave it out")
            return _serve(inference, asked, options)
        _refuse(context, _NAMES, "says nothing about training; give --inference, too")
        if options["batch"] is None:
            raise click.MissingParameter(ctx=context, param=_parameters(context)["batch"])
        return command(**options)

    for add in reversed(_OPTIONS):
        chosen = add(chosen)
    return chosen  # type: ignore[return-value]


def _parameters(context: click.Context) -> Mapping[str, click.Parameter]:
    return {str(parameter.name): parameter for parameter in context.command.params}


def _refuse(context: click.Context, names: Any, why: str) -> None:
    """Raises click's error for wrong usage if one of these options was given."""
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{_parameters(context)[name].opts[0]} {why}", context)


def _serve(objective: str, asked: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    json_path, html_path = options["json_path"], options["html_path"]
    check_outputs(json_path, html_path)
    lengths = _lengths(asked["prompt_tokens"], asked["output_tokens"], asked["lengths_path"])
    model = options["model"]
    if is_model_file(model):
        model = model_text(model, lengths.high_total)
    elif has_own_length(model):
        sizes_of_model(model, lengths.high_total)  # refuses more tokens than the model may have
    with working(f"planning inference of {model} on {options['cluster']}"):
        from alpa_dejavu.costs.memory_margin import DEFAULT_RISK
        from alpa_dejavu.planning.inference import serve_plan
        from alpa_dejavu.planning.inference.serving_plan import serving_text

        plan = serve_plan(
            model,
            connected() if options["cluster"] == "ray" else options["cluster"],
            lengths,
            options["hosts"],
            objective=objective,
            batch=options["batch"],
            latency_limit_s=asked["latency_limit"],
            first_token_limit_s=asked["ttft_limit"],
            tensor_parallel=asked["tensor_parallel"],
            stages=asked["stages"],
            cache_bytes_per_token=asked["cache_bytes_per_token"],
            communication=options["communication"],
            risk=DEFAULT_RISK if options["risk"] is None else options["risk"],
            memory_margin=options["memory_margin"],
            calibration=options["calibration"],
            runtime=options["runtime"] or "alpa",
            overlap=options["overlap"],
        )
    written = [] if json_path is None else write_output(json_path, serving_text(plan))
    if html_path is not None:
        from alpa_dejavu.report import serving_report

        written += write_output(html_path, serving_report(plan))
    to = console(takes_stdout(json_path, html_path))
    print_serving_plan(plan, to)
    to.wrote(written)


def _lengths(prompt: int | None, output: int | None, path: pathlib.Path | None) -> Lengths:
    from alpa_dejavu.planning.inference import Lengths

    if path is None:
        return Lengths.fixed(prompt or _PROMPT, output or _OUTPUT)
    if prompt is not None or output is not None:
        raise click.UsageError("--lengths has the lengths of prompts and outputs; leave their numbers out")
    return Lengths.read(path)


def print_serving_plan(plan: ServingPlan, to: Pages) -> None:
    """Prints a plan for inference: a row for each phase, and what its devices keep."""
    from alpa_dejavu.layers.models import model_title
    from alpa_dejavu.planning.inference.serving_plan import phase_rows, plan_facts

    heads, *rows = phase_rows(plan)
    to.print(f"inference of {model_title(plan.model)} on {plan.cluster}")
    table = new_table(heads[:1], heads[1:])
    for row in rows:
        table.add_row(*row)
    to.print(table)
    for name, text in plan_facts(plan):
        to.fact(name, text)
