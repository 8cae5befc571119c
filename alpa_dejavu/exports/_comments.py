"""Comments in a target's files: what the plan is, and where each of its figures comes from."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from alpa_dejavu._util import units
from alpa_dejavu.exports._outline import Outline
from alpa_dejavu.problem import Plan

__all__ = ["commented", "heading", "one_line"]

_WIDTH = 110


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
    yield "Ranks go along the hosts in the order of the stages:"
    last = len(plan.stages) - 1
    for n, stage in enumerate(plan.stages):
        parts = [*(["embeddings"] if n == 0 else []), units.counted(outline.blocks[n], "block")]
        parts += ["head and loss"] if n == last else []
        remat = ", computed again for the backward pass" if outline.remat[n] else ""
        yield one_line(f"  stage {n}: {', '.join(parts)}{remat}, on {', '.join(stage.hosts)}")


def commented(lines: Iterable[str], sign: str = "#") -> str:
    """Returns lines as comments, each behind a sign."""
    text = ""
    for line in lines:
        inside = "  " * (len(line) - len(line.lstrip()) > 0) + "  "
        for part in textwrap.wrap(line, _WIDTH, subsequent_indent=inside, break_on_hyphens=False) or [""]:
            text += f"{sign} {part}".strip(" ") + "\n"
    return text
