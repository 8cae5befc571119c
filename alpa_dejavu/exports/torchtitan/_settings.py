"""torchtitan's configuration as settings with their lines: of a job's TOML, or of Python, which isn't run."""

from __future__ import annotations

import importlib
import pathlib
import re
import sys
from typing import Final

from alpa_dejavu._util.json_file import read_text
from alpa_dejavu.exports._settings import Configuration, checked_settings, settings_of
from alpa_dejavu.exports.torchtitan._python import Lines, Sections, settings_of_python

REMEDY: Final = "give a job's TOML of torchtitan's, or the Python with its configuration"
_MOST = 1_000_000
"""So many characters may a configuration have."""
_LONG_NAME = re.compile(r"(?<![^\s.=\[\]{},])(?:[^\s.=\[\]{},]+[ \t]*\.[ \t]*){20}")
_SECTION = re.compile(r"\s*\[\s*([\w.-]+)\s*\]")
_OLD = {"data_parallel_degree": "data_parallel_shard_degree"}
_KEY = re.compile(r"\s*([\w-]+)\s*=")


def read_settings(path: pathlib.Path, config: str = "") -> Configuration:
    """Returns the configuration of a TOML, or of the function in Python that `config` names, where there are several.
    Raises ValueError, with the line, if it can't be read, or Python decides what isn't written out.
    """
    text = read_text(path, REMEDY)
    if len(text) > _MOST:
        raise ValueError(f"{path} has {len(text)} characters, but must have {_MOST} at most; {REMEDY}")
    if config and path.suffix != ".py":
        raise ValueError(f"config is {config!r}, but must be left out for {path}, which has one configuration")
    sections, lines = settings_of_python(path, text, config) if path.suffix == ".py" else _of_toml(path, text)

    def wrong(place: tuple[str, ...], why: str) -> ValueError:
        return _wrong(path, lines.get(place, lines.get(place[:1])), why)

    return checked_settings("torchtitan", sections, wrong, lines.get, "; mend it")


def _wrong(path: pathlib.Path, line: int | None, why: str) -> ValueError:
    return ValueError(f"{path}{'' if line is None else f', line {line}'}: {why}")


def _of_toml(path: pathlib.Path, text: str) -> tuple[Sections, Lines]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    long_name = _LONG_NAME.search(text)
    if long_name is not None:
        line = text.count("\n", 0, long_name.start()) + 1
        raise _wrong(path, line, f"a name has more than 20 parts; {REMEDY}")
    try:
        data = toml.loads(text)
    except (RecursionError, ValueError) as error:
        why = "it is too deep" if isinstance(error, RecursionError) else error
        raise ValueError(f"{path}: this isn't TOML: {why}; {REMEDY}") from None
    if not data:
        raise ValueError(f"{path} is empty, but must have a job's settings; {REMEDY}")
    section, lines = tuple[str, ...](), Lines()
    for number, row in enumerate(text.splitlines(), 1):
        if (begins := _SECTION.match(row)) is not None:
            section = tuple(begins[1].split("."))
            lines[section] = number
        elif (key := _KEY.match(row)) is not None:
            lines.setdefault((*section, key[1]), number)
    for name, value in data.items():
        if not isinstance(value, dict):
            why = f"{name} is outside of all sections; put it into one, or leave it out"
            raise _wrong(path, lines.get((name,)), why)
    _move_degrees(path, data, lines)
    return data, lines


def _move_degrees(path: pathlib.Path, data: Sections, lines: Lines) -> None:
    """Puts degrees where later releases have them: those of 2024 have them among the training's and the experiments."""
    settings, stages = settings_of("torchtitan"), False
    for section in ("training", "experimental"):
        for key in [*data.get(section, ())]:
            name = _OLD.get(key, key)
            if name not in settings["parallelism"] or key in settings[section]:
                continue
            line, parallelism = lines.get((section, key)), data.setdefault("parallelism", {})
            if name in parallelism:
                raise _wrong(path, line, f"{section}.{key} is beside parallelism.{name}; leave one of them out")
            parallelism[name] = data[section].pop(key)
            if line is not None:
                lines[("parallelism", name)] = line
            stages = stages or name == "pipeline_parallel_degree"
    if stages:  # where none are said, there were as many micro-batches as stages
        data["parallelism"].setdefault("pipeline_parallel_microbatches", 0)
