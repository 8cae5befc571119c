"""torchtitan's configuration in Python, as sections of settings with their lines."""

from __future__ import annotations

import ast
import pathlib
import warnings
from typing import Any, Final, TypeAlias

from alpa_dejavu.exports._command_line import wrong_line
from alpa_dejavu.exports._settings import setting_of, settings_of
from alpa_dejavu.exports.torchtitan._follow import DECIDED, MADE, USUAL, Made, Module, Undecided, undecided_in

Sections: TypeAlias = dict[str, Any]
Lines: TypeAlias = dict[tuple[str, ...], int]
_CONVERTERS: Final = {
    "Float8LinearConverter.Config": "quantize.linear.float8", "MXFP8LinearConverter.Config": "quantize.linear.mx",
    "Float8GroupedExpertsConverter.Config": "quantize.grouped_mm.float8",
    "MXFP8GroupedExpertsConverter.Config": "quantize.grouped_mm.mx",
}  # fmt: skip
"""The calls that make converters, with their names in TOML."""


def settings_of_python(path: pathlib.Path, text: str, config: str) -> tuple[Sections, Lines]:
    """Returns the sections of one configuration in a module, as TOML has them, and the lines of their settings.

    `config` names the function that returns it; empty: there is one. Raises ValueError, with the line, where what
    matters isn't data, or the function isn't known.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        module = Module(path, tree)
        return _sections(path, module, module.configuration(config))
    except SyntaxError as error:
        raise wrong_line(path, error.lineno or 1, f"this isn't Python: {error.msg}; mend it") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"{path}: this isn't Python that is read: it is too deep; write it out") from None


def _sections(path: pathlib.Path, module: Module, config: Made) -> tuple[Sections, Lines]:
    """Returns a configuration's sections, as TOML has them, and the lines of their settings."""
    lines: Lines = {(name,): line for name, line in config.lines.items()}
    usual = {name: Made(kind, config.line, {}, {}) for name, kind in USUAL.items()}
    sections: Sections = {}
    for name, value in {**usual, **config.fields}.items():
        if isinstance(value, Made) and name != "model_spec":
            lines |= {(name, key): line for key, line in value.lines.items()}
        if name == "model_spec":
            sections |= _model(path, module, value, config.lines[name], lines)
            continue
        if name == "activation_checkpoint" and value is None:
            sections[name] = {"mode": "none"}
            continue
        if name not in USUAL:
            own = value.fields if isinstance(value, Made) else value
            _check(path, name, own, config.lines[name])
            sections[name] = {} if isinstance(own, Undecided) else own
            continue
        if not isinstance(value, Made) or value.name not in MADE:
            line = value.line if isinstance(value, (Made, Undecided)) else config.lines[name]
            raise wrong_line(path, line, f"{name} isn't made by one of {', '.join(MADE)}; write it out so")
        own = dict(value.fields)
        if value.name == "OptimizersContainer.Config":
            own = {"name": _optimizer(path, own.pop("param_groups", None), value.line), **own}
            lines[(name, "name")] = value.lines.get("param_groups", value.line)
        for key, inner in own.items():
            _check(path, name, inner, value.lines.get(key, value.line), key)
        sections[name] = MADE[value.name] | own
    return sections, lines


def _check(path: pathlib.Path, section: str, value: Any, line: int, key: str = "") -> None:
    """Checks that a setting which matters is data."""
    settings = settings_of("torchtitan")
    names = settings.get(section, {}) if key else settings[""]
    setting, undecided = setting_of(names, key or section), next(undecided_in(value), None)
    aside = setting is None or setting.use == "aside" or "*" in settings.get(section, {})
    if undecided is not None and not aside:
        raise wrong_line(path, undecided.line or line, f"{undecided.text!r} {DECIDED}")


def _model(path: pathlib.Path, module: Module, spec: Any, line: int, lines: Lines) -> Sections:
    """Returns the sections that say which model it is, and in how many bits its products are."""
    if not isinstance(spec, Made):
        return {}
    name, _, called = spec.name.rpartition(".")
    own = {key: value for key, value in spec.fields.items() if key not in ("0", "flavor", "converters")}
    lines |= {("model", key): spec.lines.get(key, line) for key in ("converters", *own)}
    lines[("model", "flavor")] = spec.line
    model: dict[str, Any] = {}
    if called == "model_registry" or spec.name in module.models:
        flavor = spec.fields.get("flavor", spec.fields.get("0"))
        model = {"name": name or module.models.get(spec.name, ""), "flavor": flavor, **own}
    for key, value in model.items():
        _check(path, "model", value, line, key)
    converters = spec.fields.get("converters") or []
    if not isinstance(converters, list) or not all(isinstance(value, Made | Undecided) for value in converters):
        raise wrong_line(path, lines[("model", "converters")], f"the converters of the model are {DECIDED[3:]}")
    quantize: dict[str, dict[str, Any]] = {}
    for value in converters:
        called = value.name if isinstance(value, Made) else value.text
        _, kind, width = _CONVERTERS.get(called, "..").split(".")
        model.setdefault("converters", []).append(_CONVERTERS.get(called, called))
        if called in _CONVERTERS and value.fields:
            quantize.setdefault(kind, {})[width] = value.fields
            lines[("quantize", kind)] = value.line
            lines |= {("quantize", kind, width, key): line for key, line in value.lines.items()}
    return {**({"model": model} if model else {}), **({"quantize": quantize} if quantize else {})}


def _optimizer(path: pathlib.Path, groups: Any, line: int) -> str:
    """Returns the one optimizer of all groups of parameters."""
    names = set()
    for group in groups if isinstance(groups, list) else [groups] if groups is not None else []:
        name = group.fields.get("optimizer_name") if isinstance(group, Made) else group
        if not isinstance(name, str):
            raise wrong_line(path, line, f"the optimizer of param_groups {DECIDED}")
        names.add("AdamW" if name == "Adam" else name)
    if len(names) > 1:
        listed = " and ".join(sorted(names))
        raise wrong_line(path, line, f"optimizers are {listed}, but must be one to be planned; leave one")
    return names.pop() if names else "AdamW"
