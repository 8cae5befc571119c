"""A plan written to a folder as a target's files."""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING

from alpa_dejavu._util.json_file import write_whole_bytes
from alpa_dejavu.exports._target import Target
from alpa_dejavu.exports._targets import named_target
from alpa_dejavu.layers.models import Transformer, transformer_size
from alpa_dejavu.planning.search.runtimes import WITHOUT_FROZEN, hindrances
from alpa_dejavu.problem import Plan

if TYPE_CHECKING:
    from alpa_dejavu.planning.changed.kept import Kept

__all__ = ["export"]


def export(
    plan: Plan,
    to: str | Target,
    output: str | os.PathLike[str],
    force: bool = False,
    model: Transformer | None = None,
    kept: Kept | None = None,
) -> list[pathlib.Path]:
    """Writes the files that a runtime, or a simulator, needs for a plan; returns their paths.

    Nothing is written unless all can be; each file is written whole.

    Args:
        plan: the plan.
        to: a name in `TARGETS`, or a target.
        output: the folder, which is made if need be.
        force: whether files of the same names are replaced.
        model: the sizes of the plan's model; None: they are those that the model's name stands for, if any.
        kept: what planning has kept beside the plan, which spares simulators' writers pricing it afresh.

    Raises:
        ValueError: there is no such target, it can't run the plan (says which stage, by which rule, and what would do),
            a file is already there, or can't be written.
    """
    target, folder = to if isinstance(to, Target) else named_target(to), pathlib.Path(output)
    if target.runtime is not None:
        why = list(hindrances(plan, target.name, target.runtime))
        if why:
            raise ValueError(f"{target.name} can't run the plan: {'; '.join(map(str, why))}")
        if model is not None and (frozen := target.runtime.why_not_frozen(model.text)):
            raise ValueError(f"{target.name} can't train the model: {frozen}; {WITHOUT_FROZEN}")
    sizes = transformer_size(plan.model) if model is None else model
    files = target.writer.knowing(plan, kept).write(plan, sizes)
    paths = {name: folder / name for name in files}
    there = [path for path in paths.values() if path.exists() or path.is_symlink()]
    if there and not force:
        raise ValueError(f"{there[0]} is already there, but must not be; give another folder, or --force to replace it")
    for path in paths.values():
        _make_folder(path.parent)
    for name, path in paths.items():
        content = files[name]
        write_whole_bytes(path, content.encode("utf-8") if isinstance(content, str) else content)
    return list(paths.values())


def _make_folder(folder: pathlib.Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder} can't be made: {error.strerror or error}; give another folder") from None
