"""Keeps in files what planning knew of a model and a cluster, so that planning again traces nothing.

Beside `plan.json` it is `plan.json.kept.json.gz`, compressed JSON, version 1: the SHA-256 of the plan file's bytes,
operators and tensors of the layers, how the sharding engine cuts these on the meshes that were asked for, and the
cluster. The cache of models keeps a model alone, in the same format.

A crash leaves a pair, as it is replaced by another one in three steps:

1. what is kept of the new plan is written, under a name for what is yet to come;
2. the new plan replaces the old one;
3. what is kept of the new plan takes the place of what was kept of the old one.

Each happens as a whole or not at all. After a crash before the second step the old plan is there, and its digest is in
the file of the old name; after one behind it the new plan, and its digest is in the file of step 1. So readers look
into both files. A writer does the third step of the one before it first, if that is missing: else what it writes in
step 1 would replace half of a pair.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import pathlib
from typing import Any, final

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu._util.json_file import is_stream, write_whole, write_whole_bytes
from alpa_dejavu.planning.changed._kept import VERSION, Kept, kept_data, kept_of
from alpa_dejavu.planning.search.models.model_cache import packed_json, read_packed
from alpa_dejavu.plans.plan_file import plan_text
from alpa_dejavu.problem import Plan

__all__ = ["Kept", "Written", "kept_files", "kept_path", "read_kept", "write_with_kept"]

_LOGGER = logging.getLogger(__name__)
_DIGEST = "plan_sha256"
_REMEDY = "`alpa-dejavu plan --json FILE` writes it beside the plan: plan once more"


@final
@dataclasses.dataclass(frozen=True)
class Written:
    """The files that were written when a plan was saved: its own, and that of what planning again needs."""

    files: tuple[pathlib.Path, ...]  # the plan's file, and the file for planning again, if that was written
    lacking: str = ""  # why nothing was kept for planning again; empty: it was, or there was nothing to keep


def kept_path(plan: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the path beside a plan's file that holds what planning again needs, whether or not it exists.

    >>> kept_path("plans/gpt.json").name
    'gpt.json.kept.json.gz'
    """
    return next((path for path in (*kept_files(plan), _old(plan)) if path.exists()), kept_files(plan)[0])


def kept_files(plan: str | os.PathLike[str]) -> tuple[pathlib.Path, pathlib.Path]:
    """Returns the paths of the files for what planning again needs: the present one, and one still being written."""
    path = pathlib.Path(plan)
    return path.with_name(f"{path.name}.kept.json.gz"), path.with_name(f"{path.name}.kept.json.gz.new")


def write_with_kept(plan: Plan, kept: Kept | None, path: str | os.PathLike[str]) -> Written:
    """Writes a plan's file, and beside it what planning again needs: a crash leaves both old files or both new ones.

    If the path is no regular file, or there is more to keep than could be read again, only the plan is written. If
    `kept` is None, an older plan's record is removed. Raises ValueError if one of the two files can't be written.
    """
    file, text = pathlib.Path(path), plan_text(plan)
    if is_stream(file):
        write_whole(file, text)
        return Written((file,), f"{file} is no regular file, so nothing is kept beside it for planning again")
    own, coming = kept_files(file)
    content, lacking = None, ""
    if kept is not None:
        try:
            with collector_paused():
                content = packed_json({"version": VERSION, _DIGEST: _digest(text.encode("utf-8")), **kept_data(kept)})
        except ValueError as error:
            lacking = f"nothing is kept for planning again: {error}"
    if content is None:
        write_whole(file, text)
        for stale in (own, coming):
            with contextlib.suppress(OSError):  # what can't be removed isn't this plan's by its digest
                stale.unlink()
        return Written((file,), lacking)
    _finish(file)
    write_whole_bytes(coming, content)
    write_whole(file, text)
    _replace(coming, own)
    return Written((file, own))


def read_kept(plan: str | os.PathLike[str]) -> Kept:
    """Reads the record of what planning again needs, which is kept in a file beside a plan's file and has its digest.

    Old records have no digest and share a name with those of plans whose names differ only in the ending:
    `Kept.differences` tells them apart. Raises ValueError if there is none, or it is of another plan.
    """
    file = pathlib.Path(plan)
    if is_stream(file):
        raise ValueError(f"{file} is no regular file, so nothing is kept beside it; {_REMEDY}")
    own, coming = kept_files(file)
    paths = [path for path in (own, coming) if path.exists()]
    if not own.exists() and _old(file).exists():
        paths.append(_old(file))
    refused = list[ValueError]()
    for path in paths or [own]:
        try:
            return _read(path, file)
        except ValueError as error:
            refused.append(error)
    raise refused[0]


def _old(plan: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the path from before there were digests: plans of one folder that differ in their ending share it."""
    path = pathlib.Path(plan)
    return path.with_name(f"{path.stem}.kept.json.gz")


def _read(path: pathlib.Path, plan: pathlib.Path) -> Kept:
    """Reads what is kept in a file; raises ValueError unless it is of the plan's file as that is now."""
    data = _data(path)
    if path != _old(plan) or _DIGEST in data:
        if not plan.exists():
            raise ValueError(f"{path} was kept of {plan}, which isn't there; {_REMEDY}")
        if data.get(_DIGEST) != _digest(plan.read_bytes()):
            raise ValueError(f"{path} was kept of another plan than {plan} is, or of that before it changed; {_REMEDY}")
    else:
        _LOGGER.warning(
            "%s doesn't say which plan it was kept of, so it may be another one's than %s; %s", path, plan, _REMEDY
        )
    try:
        return kept_of(data)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} isn't what is kept for planning again: {error!r}; {_REMEDY}") from None


def _data(path: pathlib.Path) -> dict[str, Any]:
    try:
        data = read_packed(path)
    except OSError as error:
        raise ValueError(f"{path}, which is kept for planning again, can't be read: {error}; {_REMEDY}") from None
    except ValueError as error:
        raise ValueError(f"{path} isn't what is kept for planning again: {error}; {_REMEDY}") from None
    version = data.get("version") if isinstance(data, dict) else None
    if version != VERSION:
        raise ValueError(f"{path}: version is {version!r}, but must be {VERSION}; {_REMEDY}")
    return dict(data)


def _finish(plan: pathlib.Path) -> None:
    """Does the third step of the writer before, if that one ended without it."""
    own, coming = kept_files(plan)
    if not (coming.exists() and plan.exists()):
        return
    try:
        digest = _data(coming).get(_DIGEST)
    except ValueError:
        return  # nothing in it would be lost
    if digest == _digest(plan.read_bytes()):
        _replace(coming, own)


def _replace(coming: pathlib.Path, own: pathlib.Path) -> None:
    try:
        os.replace(coming, own)
    except OSError as error:
        raise ValueError(f"{own} can't be written: {error.strerror}; it is in {coming}, which is read too") from None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
