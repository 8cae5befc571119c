"""MaxText's settings with their lines: of a YAML over its own defaults, or of the script that runs one with some."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, Final, final

from alpa_dejavu._util.yaml_file import plain_value, read_checked_yaml
from alpa_dejavu.exports._command_line import PLAIN_NAMED, command_line_of, wrong_line
from alpa_dejavu.exports._model_names import named_sizes
from alpa_dejavu.exports._settings import (
    Configuration,
    checked_settings,
    differing,
    given_otherwise,
    setting_of,
    settings_of,
    short,
)
from alpa_dejavu.exports.maxtext._writer import model_settings
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning.search.runtimes import RUNTIMES

_REMEDY: Final = "give a YAML of MaxText's settings, or the script that runs it"
_SETTINGS: Final = settings_of("maxtext")[""]
USUAL: Final = {name: setting.default for name, setting in _SETTINGS.items() if setting.use == "default"}
"""What MaxText's own base.yml has."""
OWN_BASE: Final = "base.yml"
RULES: Final = ("logical_axis_rules", "mesh_axes", "data_sharding")
"""What says how axes divide tensors."""
_BASE, _DEEPEST = "base_config", 5
_TELLING: Final = ("model_name", "per_device_batch_size", "max_target_length", "base_emb_dim", "steps", "run_name")
"""Arguments by which a command that trains is known."""
_VOCABULARIES: Final = {"gemma2-": 256128, "gemma3-": 262144, "mistral-7b": 32000, "mixtral-8x22b": 32768}
"""The vocabularies of models that have another one in MaxText, by how their names begin."""
_SHAPE: Final = frozenset(
    "decoder_block base_emb_dim base_num_decoder_layers base_num_query_heads base_num_kv_heads head_dim base_mlp_dim "
    "base_moe_mlp_dim mlp_activations vocab_size logits_via_embedding attention_bias use_qk_norm attention_type "
    "q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim first_num_dense_layers shared_experts "
    "routed_bias rope_max_timescale rope_type rope_factor rope_use_scale num_experts num_experts_per_tok "
    "trainable_position_size global_parameter_scale".split()
)
"""The settings that say a model's sizes."""


def read_settings(path: pathlib.Path, model: Transformer | None = None) -> Configuration:
    """Returns the settings of a YAML, or of a script, over those of a known model, over MaxText's own. Raises
    ValueError, with the line, if it can't be read, leads to files that aren't there, or says other sizes than a model
    that is given.
    """
    is_script = path.suffix in (".sh", ".bash", ".txt", "")
    return _configured(path, _of_script(path) if is_script else _chain(path), is_script, model)


@final
@dataclasses.dataclass(frozen=True)
class _SettingAt:
    """A setting as it is written: its value, and where."""

    value: Any
    path: pathlib.Path
    line: int | None


def _chain(path: pathlib.Path, depth: int = 0) -> dict[str, _SettingAt]:
    """Returns the settings of a file and of those that it is based on, but for MaxText's own."""
    file = read_checked_yaml(path, dict[str, Any], _REMEDY)
    written = {name: _SettingAt(value, path, file.line_of(file.text, (name,))) for name, value in file.data.items()}
    base = written.pop(_BASE, None)
    return {**({} if base is None else _based_on(base, depth)), **written}


def _based_on(base: _SettingAt, depth: int = 0) -> dict[str, _SettingAt]:
    """Returns the settings of the file that another is based on."""
    name = str(base.value)
    file = base.path.parent / name
    if _is_there(file) and depth < _DEEPEST and file != base.path:
        return _chain(file, depth + 1)
    if pathlib.PurePosixPath(name).name != OWN_BASE:
        raise wrong_line(
            base.path, base.line or 1, f"{short(name)} has further settings, but isn't there; put it beside this file, "
            f"and name it so, or write its settings into this one, over MaxText's own {OWN_BASE}",
        )  # fmt: skip
    return {}


def _is_there(file: pathlib.Path) -> bool:
    try:
        return file.is_file()
    except (OSError, ValueError):  # No file can have such a name.
        return False


def _of_script(path: pathlib.Path) -> dict[str, _SettingAt]:
    """Returns the settings of the command that trains; those of the YAML that it names stand behind them."""
    written: dict[str, _SettingAt] = {}
    command = command_line_of(path, _TELLING, PLAIN_NAMED, "MaxText")
    for name, line in command.assigned.items():
        key = name.removeprefix("M_").lower()
        setting = setting_of(_SETTINGS, key) if name.startswith("M_") else None
        if setting is not None and setting.use != "aside":
            raise wrong_line(path, line, f"{name} sets {key} in MaxText; write {key}=... among the settings instead")
    for argument in command.arguments:
        if not argument.name:
            for name in [value for value in argument.values if value.endswith((".yml", ".yaml"))][:1]:
                written = _based_on(_SettingAt(name, path, argument.line)) | written
            continue
        if len(argument.values) > 1:
            why = f"{short(argument.values[1])} isn't a setting as name=value; leave it out"
            raise wrong_line(path, argument.line, why)
        setting = setting_of(_SETTINGS, argument.name)
        if argument.unknown is not None and (argument.unknown.flow or setting is None or setting.use != "aside"):
            shown = short(f"{argument.name}={argument.value}")
            raise wrong_line(path, argument.unknown.line, f"{shown} isn't known: {argument.unknown.reason}")
        written[argument.name] = _SettingAt(plain_value(argument.value), path, argument.line)
    return written


def _configured(
    path: pathlib.Path, written: Mapping[str, _SettingAt], commanded: bool, model: Transformer | None
) -> Configuration:
    """Returns the configuration of what is written, over a known model's sizes, over MaxText's own."""

    def line_of(place: tuple[str, ...]) -> int | None:
        setting = written.get(place[0]) if place else None
        return None if setting is None or setting.path != path else setting.line

    def wrong(place: tuple[str, ...], why: str) -> ValueError:
        setting = written.get(place[0]) if place else None
        if setting is None:
            return ValueError(f"{path}: {why}")
        return wrong_line(setting.path, setting.line or 1, why)

    values = {name: None if setting.value == "None" else setting.value for name, setting in written.items()}
    config = checked_settings("maxtext", values, wrong, line_of, "; mend it")
    for name in RULES:
        if name in values and written[name].path.name != OWN_BASE:
            raise config.wrong(name, f"{name} is written, but must be MaxText's own to be planned; leave it out")
    sizes, has = known_model(config, model), f"model_name {config.get('model_name')} has"
    if model is not None:
        if sizes is not None and (other := differing(sizes, model)):
            raise config.wrong("model_name", given_otherwise(f"model_name is {config.get('model_name')}", other))
        sizes, has = model, "--model has"
    named = {} if sizes is None or not is_written(sizes) else _shape(sizes)
    wins = model is None and commanded and config.flag("override_model_config") and bool(named)
    for name in filter(_SHAPE.__contains__, values) if sizes is not None and not wins else ():
        own = named.get(name, USUAL.get(name))
        if not (values[name] == own and named) and written[name].path.name != OWN_BASE:
            wins_over = short(own) if named else "its own"
            why = f"{name} is {short(values[name])}, but {has} {wins_over}, which wins; leave one of them out"
            raise config.wrong(name, why)
    ignored = config.ignored
    if path.name == OWN_BASE:  # it has all of them
        ignored = (f"{len(ignored)} settings of {path}",)
    over = {**named, **values} if wins else {**values, **named}
    return dataclasses.replace(config, values={**USUAL, **over}, ignored=ignored)


def _shape(model: Transformer) -> dict[str, Any]:
    """Returns the settings that say a model's sizes, but not how it is trained."""
    settings = model_settings(dataclasses.replace(model, optimizer="adamw", precision="bfloat16"))
    return {name: value for name, value in settings.items() if name not in ("dtype", "max_target_length")}


def known_model(config: Configuration, given: Transformer | None = None) -> Transformer | None:
    """Returns the sizes of a model by MaxText's name of it; None where it isn't named, or beside a model that is given
    not known.
    """
    name = str(config.get("model_name", "default"))
    if name == "default":
        return None
    plain = name.replace("-Instruct", "").removesuffix("-base")
    sizes = named_sizes("maxtext", plain)
    if sizes is None and given is not None:
        return None
    if sizes is None:
        why = f"the sizes of model_name {name} aren't known; give --model, such as its config.json, or write them out"
        raise config.wrong("model_name", why)
    vocabulary = next((number for start, number in _VOCABULARIES.items() if plain.startswith(start)), sizes.vocabulary)
    return dataclasses.replace(sizes, predicted=0, vocabulary=vocabulary)


def is_written(model: Transformer) -> bool:
    """Returns whether settings can say a model's sizes."""
    return not RUNTIMES["maxtext"].why_not_written(model)
