"""The degrees, headings and comments that writers and readers of runtimes with equal stages have in common."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from alpa_dejavu._util import units
from alpa_dejavu.exports._settings import Configuration
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning.search.runtimes import RUNTIMES
from alpa_dejavu.plans.outline import DEGREES, Outline
from alpa_dejavu.problem import MeshConfig, Plan


def degrees_of(
    config: Configuration, ways: tuple[int, int], names: Mapping[str, str], sharded: int = 0
) -> dict[str, Any]:
    """Returns the degrees beside data and tensor parallelism, of which there are so many `ways`, by their names in
    `DEGREES`; `names` has the settings that say them. Raises ValueError, with the line, if devices can't be divided so.
    """
    degrees: dict[str, Any] = {name: config.number(setting, DEGREES[name]) for name, setting in names.items()}
    try:
        mesh = MeshConfig(ways, *ways, sharded=sharded, **degrees)
    except ValueError as error:
        why = str(error).removeprefix("mesh config: ")
        wrong = names.get(why.partition(" is ")[0], "")
        for name, setting in names.items():
            why = why.replace(f"{name} ", f"{config.sign}{setting} ")
        raise config.wrong(wrong, why) from None
    return {name: getattr(mesh, name) for name in DEGREES}


def sizes_of(plan: Plan, model: Transformer | None, target: str) -> Transformer:
    """Returns the sizes of a plan's model for a target's files. Raises ValueError if these can't say them, they aren't
    known, or are of another number of layers.
    """
    if model is None:
        raise ValueError(
            f"model is {plan.model!r}, but must be a transformer of known sizes for {target} to be told them; give "
            "--model, a known name, a config.json, or the sizes as 'transformer:hidden=N,...'"
        )
    if why := RUNTIMES[target].why_not_written(model):
        raise ValueError(f"{why} to be written for {target}; give another model, or write for another runtime")
    if model.num_layers != plan.num_layers:
        raise ValueError(
            f"the plan has {plan.num_layers} layers, but must have {model.num_layers}: embeddings, "
            f"{model.num_blocks} blocks and a head; plan again with --for {target}"
        )
    return model


_WIDTH = 110
_REMAT = {
    "layer": ", computed again for the backward pass",
    "selective": ", of which what is cheap is computed again for the backward pass",
}


def one_line(text: str) -> str:
    """Returns a text without what could end a comment or a string that it is written into."""
    return text.encode("unicode_escape").decode("ascii").replace('"', "'")


def heading(plan: Plan, outline: Outline, release: str) -> Iterator[str]:
    """Yields the lines that each file begins with: the plan, the release that the file is for, and the stages."""
    yield one_line(f"{plan.model or 'A model'} on {plan.cluster}, a batch of {plan.batch}.")
    predicted = plan.predicted if plan.step_s else "its step isn't predicted"
    yield f"A plan by alpa-dejavu for {release}: {predicted}."
    yield (
        f"{outline.pipeline} x {outline.data_parallel} x {outline.tensor_parallel} devices: pipeline, data and tensor "
        f"parallel, tensor parallel ones next to each other; {outline.num_micro_batches} micro-batches of "
        f"{outline.micro_batch} samples in each replica; schedule {outline.schedule}."
    )
    shared = [
        f"{name} {value}" for name, value in outline.degrees.items() if value != DEGREES[name]
    ]
    if shared:
        yield f"Of the data parallel devices, as the plan has them: {', '.join(shared)}."
    yield "Ranks go along the hosts in the order of the stages:"
    last = len(plan.stages) - 1
    for n, stage in enumerate(plan.stages):
        parts = [*(["embeddings"] if n == 0 else []), units.counted(outline.blocks[n], "block")]
        parts += ["head and loss"] if n == last else []
        remat = _REMAT.get(outline.remat[n], "")
        if outline.again[n] < outline.blocks[n] and outline.again[n]:
            remat = f", of which the first {outline.again[n]} are computed again for the backward pass"
        yield one_line(f"  stage {n}: {', '.join(parts)}{remat}, on {', '.join(stage.hosts)}")


def commented(lines: Iterable[str], sign: str = "#") -> str:
    """Returns lines as comments, each behind a sign."""
    text = ""
    for line in lines:
        inside = "    " if line.startswith(" ") else "  "
        for part in textwrap.wrap(line, _WIDTH, subsequent_indent=inside, break_on_hyphens=False) or [""]:
            text += f"{sign} {part}".strip(" ") + "\n"
    return text


def filled(template: str, **fields: object) -> str:
    """Returns a template of a file that is written, with what stands in its braces."""
    path = pathlib.Path(__file__).with_name("templates") / f"{template}.py.txt"
    return path.read_text(encoding="utf-8").format(**fields)
