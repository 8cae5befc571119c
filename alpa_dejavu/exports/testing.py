"""The conformance suite of targets: run any target, ours or your own, through it."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable, Sequence

from alpa_dejavu.exports._target import Files, Target
from alpa_dejavu.exports._targets import export
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning.search.runtimes import hindrances
from alpa_dejavu.problem import Plan


def check_target(
    target: Target,
    plans: Sequence[tuple[Plan, Transformer | None]],
    validate: Callable[[Files, Plan], None] | None = None,
) -> None:
    """Checks that a target keeps its contract: for plans that its rules allow the same files each time, with relative
    names and content; an error that names it for others; nothing overwritten unless forced. `validate` raises for files
    that the target would refuse. Raises AssertionError, which says what is wrong.
    """
    written = 0
    with tempfile.TemporaryDirectory() as name:
        for n, (plan, model) in enumerate(plans):
            folder = pathlib.Path(name) / str(n)
            if target.runtime is not None and list(hindrances(plan, target.name, target.runtime)):
                error = _error(plan, target, folder, model)
                assert error, f"{target.name} wrote a plan that its rules don't allow"
                assert target.name in error, f"the error doesn't name {target.name}: {error}"
                assert not folder.exists(), f"{target.name} was refused, but left a folder behind"
                continue
            files = target.writer.write(plan, model)
            assert files, f"plan {n}: {target.name} wrote no files"
            assert dict(files) == dict(target.writer.write(plan, model)), f"plan {n}: written again, files are others"
            if validate is not None:
                validate(files, plan)
            _check_written(target, plan, model, folder, files)
            written += 1
    assert written, f"none of the plans can be run by {target.name}: give one that can"


def _error(plan: Plan, target: Target, folder: pathlib.Path, model: Transformer | None) -> str:
    try:
        export(plan, target, folder, model=model)
    except ValueError as error:
        return str(error)
    return ""


def _check_written(target: Target, plan: Plan, model: Transformer | None, folder: pathlib.Path, files: Files) -> None:
    for name, content in files.items():
        parts = pathlib.PurePosixPath(name).parts
        assert not ({"/", ".."} & {*parts}), f"{name!r} leads out of the folder"
        assert content, f"{name!r} is empty"
    paths = export(plan, target, folder, model=model)
    assert sorted(path.relative_to(folder).as_posix() for path in paths) == sorted(files), "not all files were written"
    for path in paths:
        content = files[path.relative_to(folder).as_posix()]
        written = path.read_bytes()
        assert written == (content.encode("utf-8") if isinstance(content, str) else content), f"{path.name} is another"
    paths[0].write_text("kept")
    assert _error(plan, target, folder, model), f"{paths[0].name} was there, but no error said so"
    assert paths[0].read_text() == "kept", f"{paths[0].name} was overwritten"
    export(plan, target, folder, force=True, model=model)
    assert paths[0].read_bytes() != b"kept", f"{paths[0].name} wasn't replaced, although it was forced"
