"""JSON files of users: errors name file, line, key and remedy, and a file is written whole or not at all."""

from __future__ import annotations

import difflib
import functools
import json
import math
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

Path: TypeAlias = Sequence[str | int]
_MOST_DIGITS = 300
_SCHEMAS = pathlib.Path(__file__).parent / "schemas"


def read_checked(path: pathlib.Path, schema: str, remedy: str) -> Mapping[str, Any]:
    """The object that a file holds, once it agrees with `schemas/<schema>.json`.

    Raises:
        ValueError: there is no such file, it isn't JSON, or something in it isn't as the schema has it. `remedy` says
            what a right file looks like, or where one comes from.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} can't be read: {error}; {remedy}") from None
    try:
        data = strict_json(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: this isn't JSON: {error.msg}; {remedy}") from None
    except RecursionError:
        raise ValueError(f"{path}: this isn't JSON that is meant: lists in lists without an end; {remedy}") from None
    except ValueError as error:
        raise problem(path, text, _of_no_json(text), f"this isn't JSON: {error}", remedy) from None
    wrong = [said for error in _validator(schema).iter_errors(data) for said in _explained(error)]
    if wrong:
        where, said = min(wrong, key=lambda one: line_of(text, one[0]) or 0)
        raise problem(path, text, where, said, remedy)
    checked: Mapping[str, Any] = data
    return checked


def strict_json(text: str, finite: bool = True) -> Any:
    """What JSON text holds, with each key once in its object and, unless `finite` is False, finite numbers alone.

    Raises:
        ValueError: it isn't so; `json.JSONDecodeError`, where it isn't JSON.
    """
    if not finite:
        return json.loads(text, object_pairs_hook=_once_each)
    return json.loads(
        text, object_pairs_hook=_once_each, parse_constant=_no_number, parse_float=_finite, parse_int=_small_enough
    )


def problem(path: pathlib.Path, text: str, where: Path, said: str, remedy: str) -> ValueError:
    """The error for what is wrong at a place in a file."""
    line = line_of(text, where)
    return ValueError(f"{path}{'' if line is None else f', line {line}'}: {said}; {remedy}")


def write_whole(path: pathlib.Path, text: str) -> None:
    """Replaces a file by a new one once that is written: a reader, or a crash, never meets half of it.

    What a link leads to is replaced, and what is no file, as /dev/stdout, is written to.

    Raises:
        ValueError: it can't be written, and why.
    """
    write_whole_bytes(path, text.encode("utf-8"))


def write_whole_bytes(path: pathlib.Path, content: bytes) -> None:
    """As `write_whole`."""
    check_folder(path)
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            _replace(path.resolve(), content)
    except OSError as error:
        why = error.strerror or error
        raise ValueError(f"{path} can't be written: {why}; make room, or give another path") from None


def check_folder(path: pathlib.Path) -> None:
    """Raises ValueError for a file that can't be written, since its folder isn't there."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ValueError(f"{path} can't be written: there is no folder {folder}; make it first")


def _replace(path: pathlib.Path, content: bytes) -> None:
    umask = os.umask(0)
    os.umask(umask)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise


def line_of(text: str, where: Path) -> int | None:
    r"""The line, counted from 1, of the key or element at a place in JSON text; None where it can't be told.

    YAML's parser knows lines, and JSON is YAML but for tabs.

    >>> line_of('{\n"a": [\n1,\n2]}', ("a", 1))
    4
    """
    import yaml

    node = _node(text)
    if node is None:
        return None
    line: int = node.start_mark.line
    for step in where:
        if isinstance(node, yaml.MappingNode):
            found = [(key.start_mark.line, value) for key, value in node.value if key.value == step]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            found = [(node.value[step].start_mark.line, node.value[step])]
        else:
            found = []
        if not found:
            break
        line, node = found[0]
    return line + 1


def _node(text: str) -> Any:
    """JSON text as YAML's parser has it; None where it can't be told."""
    import yaml

    try:
        return yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return None


def _of_no_json(text: str) -> Path:
    """The place of the first key that is there twice, or of the first number that isn't one of JSON; () if unknown."""
    import yaml

    left: list[tuple[tuple[str | int, ...], Any]] = [((), _node(text))]
    while left:
        where, node = left.pop()
        if isinstance(node, yaml.MappingNode):
            names = [key.value for key, _ in node.value]
            twice = next((name for n, name in enumerate(names) if name in names[:n]), None)
            if twice is not None:
                return (*where, twice)
            left += [((*where, key.value), value) for key, value in reversed(node.value)]
        elif isinstance(node, yaml.SequenceNode):
            left += [((*where, n), value) for n, value in reversed(list(enumerate(node.value)))]
        elif isinstance(node, yaml.ScalarNode) and node.style is None and not _is_plain(node.value):
            return where
    return ()


def _is_plain(text: str) -> bool:
    """Whether a bare word of a file is one of JSON's, or a number that is small enough."""
    if text in ("true", "false", "null"):
        return True
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def near(name: str, known: Iterable[str]) -> str:
    """Words that name what a wrong name is near to, or nothing.

    >>> near("memery", ["memory", "device"])
    "; did you mean 'memory'?"
    """
    close = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def key_name(where: Path) -> str:
    """A place in a file for people.

    >>> key_name(("stages", 0, "layers"))
    'stages[0].layers'
    """
    parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in where)
    return "".join(parts).removeprefix(".") or "the file"


def _explained(error: Any) -> list[tuple[Path, str]]:
    """What is wrong, and where: one entry for each key."""
    where, value, schema = tuple(error.absolute_path), error.instance, error.schema
    if error.validator == "additionalProperties":
        known = schema.get("properties", {})
        names = ", ".join(known)
        unknown = [key for key in value if key not in known]
        return [
            ((*where, key), f"{key_name((*where, key))} is an unknown key{near(key, known)} (known are {names})")
            for key in unknown
        ]
    if error.validator == "required":
        missing = [key for key in error.validator_value if key not in value]
        return [(where, f"{key_name(where)} lacks the key {key!r}") for key in missing[:1]]
    asked = schema.get("description") or error.message
    return [(where, f"{key_name(where)} is {_short(value)}, but must be {asked}")]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise ValueError(f"the key {twice!r} is there twice in one object")
    return data


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large a number")
    return value


def _small_enough(text: str) -> int:
    value = int(text) if len(text) < _MOST_DIGITS else None
    if value is None:
        raise ValueError(f"{text[:12]}... ({len(text)} digits) is too large a number")
    return value


@functools.cache
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    make: Callable[..., Any] = Draft202012Validator
    return make(json.loads((_SCHEMAS / f"{schema}.json").read_text(encoding="utf-8")))
