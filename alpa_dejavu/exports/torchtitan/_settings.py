"""torchtitan's configuration as settings with their lines: of a job's TOML, or of export's Python, which isn't run."""

from __future__ import annotations

import ast
import importlib
import pathlib
import re
import sys
import warnings
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, final

from alpa_dejavu._util.json_file import read_text
from alpa_dejavu.exports._settings import Configuration, checked_settings

Sections: TypeAlias = Mapping[str, Mapping[str, Any]]
Lines: TypeAlias = Mapping[tuple[str, ...], int]

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
_CONVERTERS: Final = {
    "Float8LinearConverter.Config": "quantize.linear.float8", "MXFP8LinearConverter.Config": "quantize.linear.mx",
    "Float8GroupedExpertsConverter.Config": "quantize.grouped_mm.float8",
    "MXFP8GroupedExpertsConverter.Config": "quantize.grouped_mm.mx",
}  # fmt: skip
"""The calls in Python that make converters, with their names in TOML."""
_SPECS = ("spec = model_spec()", "spec = quantized(model_spec())")
_BESIDE = re.compile(r"str\(pathlib\.Path\(__file__\)\.with_name\('([^'/\\]+)'\)\)")
_OWN = ("model_spec", "loss", "dataloader", "checkpoint", "hf_assets_path")
"""Arguments in Python that aren't looked into: the model, which is given, and what is the user's own."""


def read_settings(path: pathlib.Path) -> Configuration:
    """Returns the configuration of a TOML, or of export's Python. Raises ValueError, with the line, if it can't be
    read, or Python decides what isn't written out.
    """
    text = read_text(path, REMEDY)
    if len(text) > _MOST:
        raise ValueError(f"{path} has {len(text)} characters, but must have {_MOST} at most; {REMEDY}")
    sections, lines = _of_python(path, text) if path.suffix == ".py" else _of_toml(path, text)

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
    section, lines = "", dict[tuple[str, ...], int]()
    for number, row in enumerate(text.splitlines(), 1):
        if (begins := _SECTION.match(row)) is not None:
            section = begins[1]
            lines[(section,)] = number
        elif (key := _KEY.match(row)) is not None:
            lines.setdefault((section, key[1]) if section else (key[1],), number)
    for name, value in data.items():
        if not isinstance(value, dict):
            why = f"{name} is outside of all sections; put it into one, or leave it out"
            raise _wrong(path, lines.get((name,)), why)
    return data, lines


def _of_python(path: pathlib.Path, text: str) -> tuple[Sections, Lines]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        return _Module(path, tree).settings()
    except SyntaxError as error:
        raise _wrong(path, error.lineno or 1, f"this isn't Python: {error.msg}; {REMEDY}") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"{path}: this isn't Python that is read: it is too deep; {REMEDY}") from None


@final
class _Module:
    """A Python file of functions, of which one returns the configuration, and others return its sections."""

    def __init__(self, path: pathlib.Path, tree: ast.Module) -> None:
        self._path, self._lines = path, dict[tuple[str, ...], int]()
        self._returned: dict[str, ast.expr] = {}
        self._narrow: dict[str, dict[str, Any]] = {}
        for node in tree.body:
            is_spec = isinstance(node, ast.FunctionDef) and node.name in ("model_spec", "quantized")
            if is_spec:
                self._read_converters(node)
            if is_spec or isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            last = node.body[-1] if isinstance(node, ast.FunctionDef) else None
            if not (isinstance(node, ast.FunctionDef) and isinstance(last, ast.Return) and last.value):
                raise self._wrong(node, "it may change what is planned; leave it out")
            for inner in node.body[:-1]:
                if not (isinstance(inner, ast.Assign) and ast.unparse(inner) in _SPECS):
                    raise self._wrong(inner, "it may change what is planned; leave it out")
            self._returned[node.name] = last.value

    def settings(self) -> tuple[Sections, Lines]:
        """Returns the sections of the one configuration, and the lines of their settings."""
        configs = [value for value in self._returned.values() if _called(value) == "Trainer.Config"]
        if len(configs) != 1:
            why = f"{self._path} has {len(configs)} functions that return a Trainer.Config, but must have one"
            raise ValueError(f"{why}; {REMEDY}")
        arguments = self._arguments(configs[0])
        sections = {name: self._section(name, value) for name, value in arguments if name not in _OWN}
        return {**sections, **self._narrow}, self._lines

    def _read_converters(self, function: ast.stmt) -> None:
        """Reads what makes products in 8 bits, as the sections that say it in TOML."""
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and (name := _CONVERTERS.get(_called(call))) is not None:
                self._narrow.setdefault("model", {"converters": []})["converters"].append(name)
                gathers = [inner for key, inner in self._arguments(call) if key == "enable_fsdp_float8_all_gather"]
                if gathers:
                    self._narrow["float8"] = {"enable_fsdp_float8_all_gather": self._value(gathers[0])}

    def _arguments(self, call: ast.expr, *section: str) -> list[tuple[str, ast.expr]]:
        assert isinstance(call, ast.Call), "its name was asked for"
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise self._wrong(call, "it has arguments without names; name them")
        self._lines |= {(*section, keyword.arg or ""): keyword.value.lineno for keyword in call.keywords}
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
        return _wrong(self._path, node.lineno, why)


def _called(node: ast.expr) -> str:
    """Returns the name of what is called; empty where nothing is."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""
