"""torchtitan's configuration as sections of settings with their lines: from a job's TOML, or from the Python function
that export writes. Nothing in either is run.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pathlib
import re
import sys
import warnings
from collections.abc import Mapping
from typing import Any, Final, final

from alpa_dejavu._util.json_file import read_text

REMEDY: Final = "give a job's TOML of torchtitan's, or the torchtitan_plan.py of an export"
_MOST = 1_000_000
"""So many characters may a configuration have."""
_LONG_NAME = re.compile(r"(?<![^\s.=\[\]{},])(?:[^\s.=\[\]{},]+[ \t]*\.[ \t]*){20}")
_SECTION = re.compile(r"\s*\[\s*([\w.-]+)\s*\]")
_KEY = re.compile(r"\s*([\w-]+)\s*=")
_MADE: Final[dict[str, dict[str, Any]]] = {
    "Trainer.Config": {}, "TrainingConfig": {}, "ParallelismConfig": {}, "CompileConfig": {},
    "FullAC.Config": {"mode": "full"}, "SelectiveAC.Config": {"mode": "selective", "selective_ac_option": "op"},
    "default_adamw": {"name": "AdamW"},
}  # fmt: skip
"""The calls that make sections in Python, each with what it stands for in TOML."""
_BESIDE = re.compile(r"str\(pathlib\.Path\(__file__\)\.with_name\('([^'/\\]+)'\)\)")
_OWN = ("model_spec", "loss", "dataloader", "checkpoint", "hf_assets_path")
"""Arguments in Python that aren't looked into: the model, which is given, and what is the user's own."""


@final
@dataclasses.dataclass(frozen=True)
class JobSettings:
    """The settings of a configuration.

    Attributes:
        path: its file.
        sections: the settings of each section, by their names.
        lines: the line of each setting, by its section and its name; of a section by its name and "".
    """

    path: pathlib.Path
    sections: Mapping[str, Mapping[str, Any]]
    lines: Mapping[tuple[str, str], int]

    def wrong(self, section: str, key: str, why: str) -> ValueError:
        """Returns the error that says what is wrong with a setting, with its line."""
        line = self.lines.get((section, key), self.lines.get((section, "")))
        return ValueError(f"{self.path}{'' if line is None else f', line {line}'}: {why}")


def read_settings(path: pathlib.Path) -> JobSettings:
    """Returns the settings of a job's TOML, or of the Python function that is written for a plan.

    Raises:
        ValueError: the file can't be read, or Python decides in it what isn't written out; says in which line.
    """
    text = read_text(path, REMEDY)
    if len(text) > _MOST:
        raise ValueError(f"{path} has {len(text)} characters, but must have {_MOST} at most; {REMEDY}")
    return _of_python(path, text) if path.suffix == ".py" else _of_toml(path, text)


def _of_toml(path: pathlib.Path, text: str) -> JobSettings:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    long_name = _LONG_NAME.search(text)
    if long_name is not None:
        line = text.count("\n", 0, long_name.start()) + 1
        raise ValueError(f"{path}, line {line}: a name has more than 20 parts; {REMEDY}")
    try:
        data = toml.loads(text)
    except RecursionError:
        raise ValueError(f"{path}: this isn't TOML: it is too deep; {REMEDY}") from None
    except ValueError as error:
        raise ValueError(f"{path}: this isn't TOML: {error}; {REMEDY}") from None
    section, lines = "", {}
    for number, row in enumerate(text.splitlines(), 1):
        if (begins := _SECTION.match(row)) is not None:
            section = begins[1]
            lines[section, ""] = number
        elif (key := _KEY.match(row)) is not None:
            lines.setdefault((section, key[1]), number)
    settings = JobSettings(path, data, lines)
    for name, value in data.items():
        if not isinstance(value, dict):
            raise settings.wrong("", name, f"{name} is outside of all sections; put it into one, or leave it out")
    return settings


def _of_python(path: pathlib.Path, text: str) -> JobSettings:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        return _Module(path, tree).settings()
    except SyntaxError as error:
        raise ValueError(f"{path}, line {error.lineno or 1}: this isn't Python: {error.msg}; {REMEDY}") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"{path}: this isn't Python that is read: it is too deep; {REMEDY}") from None


@final
class _Module:
    """A Python file of functions, of which one returns the configuration, and others return its sections."""

    def __init__(self, path: pathlib.Path, tree: ast.Module) -> None:
        self._path, self._lines = path, dict[tuple[str, str], int]()
        self._returned: dict[str, ast.expr] = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Return) and node.body[-1].value:
                if node.name != "model_spec":
                    for inner in node.body[:-1]:
                        if not (isinstance(inner, ast.Assign) and ast.unparse(inner) == "spec = model_spec()"):
                            raise self._wrong(inner, "it may change what is planned; leave it out")
                    self._returned[node.name] = node.body[-1].value
            elif not (
                isinstance(node, (ast.Import, ast.ImportFrom))
                or (isinstance(node, ast.FunctionDef) and node.name == "model_spec")
            ):
                raise self._wrong(node, "it may change what is planned; leave it out")

    def settings(self) -> JobSettings:
        configs = [value for value in self._returned.values() if _called(value) == "Trainer.Config"]
        if len(configs) != 1:
            why = f"{self._path} has {len(configs)} functions that return a Trainer.Config, but must have one"
            raise ValueError(f"{why}; {REMEDY}")
        sections = {}
        for name, value in self._arguments(configs[0], ""):
            if name not in _OWN:
                self._lines[name, ""] = value.lineno
                sections[name] = self._section(name, value)
        return JobSettings(self._path, sections, self._lines)

    def _arguments(self, call: ast.expr, section: str) -> list[tuple[str, ast.expr]]:
        assert isinstance(call, ast.Call), "its name was asked for"
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise self._wrong(call, "it has arguments without names; name them")
        for keyword in call.keywords:
            self._lines[section, keyword.arg or ""] = keyword.value.lineno
        return [(keyword.arg or "", keyword.value) for keyword in call.keywords]

    def _section(self, name: str, value: ast.expr) -> dict[str, Any]:
        if isinstance(value, ast.Constant) and value.value is None and name == "activation_checkpoint":
            return {"mode": "none"}
        called = _called(value)
        if called in self._returned and isinstance(value, ast.Call) and not (value.args or value.keywords):
            value = self._returned[called]
            called = _called(value)
        if called not in _MADE:
            raise self._wrong(value, f"{name} isn't made by one of {', '.join(_MADE)}; write it out so")
        return _MADE[called] | {key: self._value(inner) for key, inner in self._arguments(value, name)}

    def _value(self, node: ast.expr) -> Any:
        beside = _BESIDE.fullmatch(ast.unparse(node))
        if beside is not None:
            return str(self._path.with_name(beside[1]))
        try:
            return ast.literal_eval(node)
        except ValueError:
            raise self._wrong(node, f"{ast.unparse(node)[:60]!r} is decided as it runs; write it out") from None

    def _wrong(self, node: ast.expr | ast.stmt, why: str) -> ValueError:
        return ValueError(f"{self._path}, line {node.lineno}: {why}")


def _called(node: ast.expr) -> str:
    """The name of what is called; empty where nothing is."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""
