"""torchtitan's configuration in Python, as sections of settings with their lines."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from alpa_dejavu.exports._command_line import wrong_line
from alpa_dejavu.exports._settings import setting_of, settings_of, short
from alpa_dejavu.exports.torchtitan._follow import BUILDERS, DECIDED, USUAL, Built, Module, Undecided, undecided_in
from alpa_dejavu.exports.torchtitan._writer import CONVERTERS, llama_spec
from alpa_dejavu.layers.models import Transformer

Sections: TypeAlias = dict[str, Any]
Lines: TypeAlias = dict[tuple[str, ...], int]
_CONVERTERS: Final = {
    f"{begin}{layers}Converter.Config": f"quantize.{kind}.{word}"
    for begin, word, *_ in CONVERTERS.values()
    for layers, kind in (("Linear", "linear"), ("GroupedExperts", "grouped_mm"))
}
"""The calls that make converters, with their names in TOML."""


_LLAMA: Final = "Llama3Model.Config"
_LLAMA_SIZES: Final = {
    "hidden": "dim", "vocabulary": "vocab_size", "tied": "enable_weight_tying", "num_blocks": "layers.n_layers",
    "num_heads": "layers.n_heads", "kv_heads": "layers.n_kv_heads", "feed_forward": "layers.hidden_dim",
    "head_size": "layers.rope.dim", "sequence": "layers.rope.max_seq_len", "rotary_base": "layers.rope.theta",
}  # fmt: skip
"""The fields of a transformer, with the places that say them in the model that a plan is written with."""


def settings_of_python(path: pathlib.Path, text: str, config: str) -> tuple[Sections, Lines]:
    """Returns the sections of one configuration in a module, as TOML has them, and the lines of their settings.

    `config` names the function that returns it; empty: there is one. Raises ValueError, with the line, where what
    matters isn't data, or the function isn't known.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = Module(path, text)
        return _sections(path, module, module.configuration(config))
    except SyntaxError as error:
        raise wrong_line(path, error.lineno or 1, f"this isn't Python: {error.msg}; mend it") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"{path}: this isn't Python that is read: it is too deep; write it out") from None


def _sections(path: pathlib.Path, module: Module, config: Built) -> tuple[Sections, Lines]:
    """Returns a configuration's sections, as TOML has them, and the lines of their settings."""
    lines: Lines = {(name,): line for name, line in config.lines.items()}
    usual = {name: Built(kind, config.line, {}, {}) for name, kind in USUAL.items()}
    sections: Sections = {}
    for name, value in {**usual, **config.fields}.items():
        if isinstance(value, Built) and name != "model_spec":
            lines |= {(name, key): line for key, line in value.lines.items()}
        if name == "model_spec":
            sections |= _model(path, module, value, config.lines[name], lines)
            continue
        if name == "activation_checkpoint" and value is None:
            sections[name] = {"mode": "none"}
            continue
        if name not in USUAL:
            own = value.fields if isinstance(value, Built) else value
            _check(path, name, own, config.lines[name])
            own = value.name if name == "loss" and isinstance(value, Built) else own
            sections[name] = {} if isinstance(own, Undecided) else own
            continue
        if not isinstance(value, Built) or value.name not in BUILDERS:
            line = value.line if isinstance(value, (Built, Undecided)) else config.lines[name]
            raise wrong_line(path, line, f"{name} isn't made by one of {', '.join(BUILDERS)}; write it out so")
        own = dict(value.fields)
        if value.name == "OptimizersContainer.Config":
            own = {"name": _optimizer(path, own.pop("param_groups", None), value.line), **own}
            lines[(name, "name")] = value.lines.get("param_groups", value.line)
        for key, inner in own.items():
            _check(path, name, inner, value.lines.get(key, value.line), key)
        sections[name] = BUILDERS[value.name] | own
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
    if not isinstance(spec, Built):
        return {}
    name, _, called = spec.name.rpartition(".")
    own = {key: value for key, value in spec.fields.items() if key not in ("0", "flavor", "converters")}
    lines |= {("model", key): spec.lines.get(key, line) for key in ("converters", *own)}
    lines[("model", "flavor")] = spec.line
    model: dict[str, Any] = {}
    if called == "model_registry" or spec.name in module.models:
        flavor = spec.fields.get("flavor", spec.fields.get("0"))
        model = {"name": name or module.models.get(spec.name, ""), "flavor": flavor, **own}
    made_of = spec.fields.get("model")
    if called == "ModelSpec" and isinstance(made_of, Built) and made_of.name == _LLAMA:
        model = {"name": spec.fields.get("name"), "flavor": _llama(path, made_of).text}
        layers = made_of.fields["layers"]
        model["attn_backend"], lines[("model", "attn_backend")] = (
            layers.fields.get("attn_backend"), layers.lines.get("attn_backend", line)
        )  # fmt: skip
    for key, value in model.items():
        _check(path, "model", value, line, key)
    converters = spec.fields.get("converters") or []
    if not isinstance(converters, list) or not all(isinstance(value, Built | Undecided) for value in converters):
        raise wrong_line(path, lines[("model", "converters")], f"the converters of the model are {DECIDED[3:]}")
    quantize: dict[str, dict[str, Any]] = {}
    for value in converters:
        called = value.name if isinstance(value, Built) else value.text
        _, kind, width = _CONVERTERS.get(called, "..").split(".")
        model.setdefault("converters", []).append(_CONVERTERS.get(called, called))
        if called in _CONVERTERS and value.fields:
            quantize.setdefault(kind, {})[width] = value.fields
            lines[("quantize", kind)] = value.line
            lines |= {("quantize", kind, width, key): line for key, line in value.lines.items()}
    return {**({"model": model} if model else {}), **({"quantize": quantize} if quantize else {})}


def _llama(path: pathlib.Path, model: Built) -> Transformer:
    """Returns the sizes of a Llama whose modules are written out as a plan's are; ValueError for one that differs."""
    parts = dict(_parts(model, model.line))
    fields: dict[str, Any] = {}
    for name, place in _LLAMA_SIZES.items():
        value, line = parts.get(place, (None, model.line))
        if not isinstance(value, int | float) or isinstance(value, bool) != (name == "tied"):
            wanted = "True or False" if name == "tied" else "a number"
            why = f"{place} of {_LLAMA} is {short(value)}, but must be {wanted} that is written out; write it so"
            raise wrong_line(path, line, why)
        fields[name] = value
    scaling, line = parts.get("layers.rope.scaling_factor", (1.0, model.line))
    try:
        sizes = Transformer(**fields, rotary_scaling=scaling)
    except (TypeError, ValueError) as error:
        raise wrong_line(path, line, f"{_LLAMA} has wrong sizes: {error}") from None
    spec = Module(path, llama_spec(sizes)).call("model_spec")
    planned = dict(_parts(spec.fields["model"], 0))
    for place in {**parts, **planned}:
        value, line = parts.get(place, (None, model.line))
        expected = planned.get(place, (None, 0))[0]
        if value != expected and place != "layers.attn_backend":
            why = f"{place} of {_LLAMA} is {short(value)}, but must be {short(expected)} to be planned"
            raise wrong_line(path, line, f"{why}; mend it, or give --model")
    return sizes


def _parts(value: Any, line: int, place: str = "") -> Iterator[tuple[str, tuple[Any, int]]]:
    """Yields the places within an object, each with its value, or with what makes it, and its line."""
    if not isinstance(value, Built):
        yield place, (value.text if isinstance(value, Undecided) else value, line)
        return
    yield place, (value.name, line)
    for name, inner in value.fields.items():
        yield from _parts(inner, value.lines.get(name, value.line), f"{place}.{name}".removeprefix("."))


def _optimizer(path: pathlib.Path, groups: Any, line: int) -> str:
    """Returns the one optimizer of all groups of parameters."""
    names = set()
    for group in groups if isinstance(groups, list) else [groups] if groups is not None else []:
        name = group.fields.get("optimizer_name") if isinstance(group, Built) else group
        if not isinstance(name, str):
            raise wrong_line(path, line, f"the optimizer of param_groups {DECIDED}")
        names.add("AdamW" if name == "Adam" else name)
    if len(names) > 1:
        listed = " and ".join(sorted(names))
        raise wrong_line(path, line, f"optimizers are {listed}, but must be one to be planned; leave one")
    return names.pop() if names else "AdamW"
