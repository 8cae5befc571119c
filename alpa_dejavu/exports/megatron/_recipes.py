"""A plan from a YAML recipe of NeMo's or Megatron-Bridge's, whose fields stand for arguments of Megatron's.

Both train by Megatron-core: a field is translated to the argument that says the same, and read as that. Nothing that a
recipe names is imported or called.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, final

from alpa_dejavu._util.json_file import CheckedFile
from alpa_dejavu._util.yaml_file import read_checked_yaml
from alpa_dejavu.exports._settings import Configuration, Setting, cluster_of, settings_of, short, unknown_setting
from alpa_dejavu.exports._target import Foreign
from alpa_dejavu.exports.megatron._reader import foreign_of
from alpa_dejavu.exports.megatron._recipe_names import (
    ASIDE_CALLBACKS,
    NAMED,
    PRECISIONS,
    SCALED_PRECISION,
    SCALINGS,
    model_arguments,
)
from alpa_dejavu.exports.megatron._sizes import size_values, value_of
from alpa_dejavu.layers.models import Transformer

_REMEDY = "give a recipe in YAML, with its fields written out"
_ARGUMENTS: Final = settings_of("megatron")[""]
_SHARED: Final = settings_of("recipe")[""]
_FIELDS: Final = {argument: name for name, argument in reversed(NAMED.items())}
_OVER: Final = {"mixed_precision", "precision", "comm_overlap", "plugins", "callbacks"}
"""The sections whose fields, and the fields that, are set over others."""
_OWN: Final = {"model", "cluster", "hosts", "sequence"}
"""Options of ours that errors name, which aren't arguments of Megatron's."""
_MODULES: Final = ("nemo", "megatron", "torch", "nemo_run", "transformer_engine", "lightning", "pytorch_lightning",
                   "transformers", "functools", "pathlib", "signal", "datetime")  # fmt: skip
_FSDP: Final = {"megatron": "use-megatron-fsdp", "pytorch": "use-torch-fsdp2"}
_DISTRIBUTED: Final = ("distributed_fused_adam", "mcore_distributed_optim")
_FUSED: Final = (*_DISTRIBUTED, "fused_adam", "megatron_fused_adam")
"""Adam by NeMo's names."""
_LATENT: Final = {"q-lora-rank": 512, "kv-lora-rank": 512, "rope-type": "yarn", "rotary-scaling-factor": 40.0}
"""What the class of latent attention has where nothing is said, and Megatron's arguments have not."""
_DEEPEST = 10
_CALLED: Final = {"_target_", "_factory_", "_partial_", "_call_", "_args_"}
_APART: Final = {
    "model", "mixed_precision", "precision", "devices", "num_nodes", "fsdp", "ddp", "activation", "activation_func",
    "gated_linear_unit", "megatron_amp_O2", "grad_sync_dtype", "transformer_engine",
}  # fmt: skip
"""Fields that stand for several arguments, or for none."""
_DTYPES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_BACKENDS: Final = {"[1]": "flash", "[2]": "fused", "[3]": "unfused", "[4]": "local", "[5]": "auto"}
_ACTIVATIONS: Final[dict[tuple[bool, str], tuple[str, ...]]] = {
    (True, "silu"): ("swiglu",), (False, "gelu"): (), (False, "squared_relu"): ("squared-relu",),
}  # fmt: skip
_BY_NEMO: Final = {
    "gelu": (False, "gelu"), "swiglu": (True, "silu"), "fast-swiglu": (True, "silu"),
    "squared-relu": (False, "squared_relu"),
}  # fmt: skip
_WITHIN = re.compile(r"\$\{(\.*)([\w-]+(?:\.[\w-]+)*)\}")
_NAME = re.compile(r"--([a-z](?:[\w-]*\w)?)")
_LAYERS: Final = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
Place: TypeAlias = tuple[str | int, ...]


class _RecipeField(NamedTuple):
    """A field of a recipe."""

    place: Place  # the keys and indices that lead to it
    value: Any

    @property
    def name(self) -> str:
        return str(self.place[-1])

    @property
    def section(self) -> str:
        return _dotted(self.place[:-1])

    @property
    def rank(self) -> int:
        """Returns over the fields of which other sections it is set: those of a lower rank."""
        return 0 if "tokenizer" in self.place else 2 if not _OVER.isdisjoint(self.place) else 1


def _dotted(place: Place) -> str:
    return ".".join(part for part in place if isinstance(part, str))


def read_nemo(path: pathlib.Path, num_devices: int, model: Transformer | None = None) -> Foreign:
    """Returns the plan of a recipe for NeMo: a configuration of NeMo 1, or a recipe of NeMo 2 as NeMo-Run writes it."""
    return _Recipe(path, "nemo").read(num_devices, model)


def read_megatron_bridge(path: pathlib.Path, num_devices: int, model: Transformer | None = None) -> Foreign:
    """Returns the plan of a recipe for Megatron-Bridge: its ConfigContainer as YAML."""
    return _Recipe(path, "megatron-bridge").read(num_devices, model)


@final
class _Recipe:
    """A recipe that is translated to Megatron's arguments."""

    def __init__(self, path: pathlib.Path, runtime: str) -> None:
        self._file: CheckedFile[dict[str, Any]] = read_checked_yaml(path, dict[str, Any], _REMEDY)
        self._runtime, self._sections = runtime, settings_of(runtime)
        self._values: dict[str, Any] = {}  # of Megatron's arguments; False, None: they aren't given
        self._places: dict[str, Place] = {}  # where these are from
        self._apart: dict[str, _RecipeField] = {}  # the fields that are read apart, by their names
        self._aside: dict[str, list[str]] = {}  # the fields of each section that are left aside
        self._notes: list[str] = []  # sentences on what is priced otherwise

    def read(self, num_devices: int, model: Transformer | None) -> Foreign:
        """Returns the plan. Raises ValueError, with the line, if a field isn't known, or isn't planned."""
        defaults = self._file.data.get("defaults") or []
        if not isinstance(defaults, list) or any(entry != "_self_" for entry in defaults):
            why = f"defaults is {short(defaults)}, which are other files; write out what they compose"
            raise self._wrong(("defaults",), why)
        for own, other, source in (("train", "trainer", "nemo"), ("trainer", "train", "megatron-bridge")):
            if self._runtime != source and other in self._file.data and own not in self._file.data:
                raise self._wrong((other,), f"{other} is a section of recipes for {source}; give --from {source}")
        self._check_called(self._file.data, ())
        for field in sorted(self._fields(self._file.data, ()), key=lambda field: field.rank):
            self._take(field)
        self._train(num_devices)
        self._size({} if model is None else size_values(model))
        arguments = {name: value for name, value in self._values.items() if value not in (None, False)}
        ignored = tuple(f"{name}: {', '.join(keys)}" if name else ", ".join(keys) for name, keys in self._aside.items())
        config = Configuration(arguments, self._wrong_argument, "--", "; mend it", ignored)
        foreign = foreign_of(config, num_devices, model)
        otherwise = (*map(self._translated, foreign.otherwise), *self._notes)
        return dataclasses.replace(foreign, otherwise=otherwise)

    def _check_called(self, value: Any, place: Place) -> None:
        """Checks that nothing names code of other modules than the recipes' own, or stands for what code makes."""
        for key, inner in enumerate(value) if isinstance(value, list) else ():
            self._check_called(inner, (*place, key))
        for key, inner in value.items() if isinstance(value, dict) else ():
            at = (*place, key)
            if key == "_target_" and str(inner).partition(".")[0] not in _MODULES:
                why = f"isn't of {', '.join(_MODULES[:3])} or what these need, so it isn't read; leave it out"
                raise self._wrong(at, f"_target_ {short(inner)} {why}")
            if key == "_factory_" and place != ("model",):
                raise self._wrong(at, f"_factory_ {short(inner)} makes fields by code, which isn't run; write them out")
            self._check_called(inner, at)

    def _fields(self, data: Mapping[str, Any], outer: Place) -> Iterator[_RecipeField]:
        """Yields the fields of all sections; those of callbacks are of one section."""
        for key, value in data.items():
            place: Place = (*outer, key)
            parts = value if isinstance(value, list) else [value]
            if _dotted(place) not in self._sections or not all(isinstance(part, dict) for part in parts) or not parts:
                yield _RecipeField(place, value)
                continue
            is_set = False
            for number, part in enumerate(parts):
                inner: Place = (*place, number) if isinstance(value, list) else place
                if key != "callbacks" or self._is_overlap(part, inner):
                    yield from self._fields(part, inner)
                    is_set = key in _OVER
            if is_set:
                yield _RecipeField(place, True)

    def _is_overlap(self, callback: Mapping[str, Any], place: Place) -> bool:
        """Returns whether a callback says what overlaps; False for one without effect, ValueError for another."""
        name = str(callback.get("_target_", "")).rpartition(".")[2]
        if name == "MegatronCommOverlapCallback":
            return True
        if name not in ASIDE_CALLBACKS:
            why = f"callback {short(name)} isn't known, so it may change what is planned; leave it out if it doesn't"
            raise self._wrong(place, why)
        self._aside.setdefault(_dotted(place), []).append(name)
        return False

    def _take(self, field: _RecipeField) -> None:
        """Takes a field: applies it, refuses it or leaves it aside."""
        rows, argument = self._sections[field.section], NAMED.get(field.name, field.name.replace("_", "-"))
        turned, argument = argument.startswith("!"), argument.removeprefix("!")
        rest = rows.get("*", Setting(""))
        setting = rows.get(field.name) or (
            rest if rest.use != "shared" else _SHARED.get(field.name, _ARGUMENTS.get(argument, Setting("")))
        )
        if not setting.use:
            names = [*rows, *_SHARED, *NAMED, *(name.replace("-", "_") for name in _ARGUMENTS)]
            raise self._wrong(field.place, unknown_setting(_dotted(field.place), field.name, names))
        if field.name in _CALLED or field.value is None:
            if field.name in ("_target_", "_factory_") and (
                field.section == "model.config" or (field.section == "model" and "model" not in self._apart)
            ):
                self._apart["model"] = field
            elif setting.use == "applied":
                self._values.setdefault(argument, None)
            return
        if setting.use == "aside":
            if field.value in (False, "", [], {}):
                return  # It is off.
            self._aside.setdefault(field.section, []).append(field.name)
            return
        field = field._replace(value=self._plain(field, field.value))
        if isinstance(field.value, bool) and turned:
            field = field._replace(value=not field.value)
        if setting.use in ("off", "refused"):
            self._check_off(field, setting)
        elif field.name not in _APART and _dotted(field.place) not in self._sections:
            self._set(field, argument, self._argument_value(field, argument))
        elif _dotted(field.place) in self._sections and not (field.value is True or isinstance(field.value, str)):
            raise self._wrong(field.place, f"{field.name} is {short(field.value)}, but must be a section of fields")
        else:
            self._apart[field.name] = field

    def _check_off(self, field: _RecipeField, setting: Setting) -> None:
        """Checks that a field has none but values that leave all as it is."""
        values = field.value if isinstance(field.value, list) else [field.value]
        if not all(map(setting.leaves, values)):
            why = setting.why or "isn't planned"
            raise self._wrong(field.place, f"{_dotted(field.place)} {short(field.value)} {why}; {setting.remedy}")

    def _plain(self, field: _RecipeField, value: Any, deep: int = 0) -> Any:
        """Returns a field's value: what it refers to in the file, and names for what code is named."""
        if isinstance(value, str) and "${" in value:
            match = _WITHIN.fullmatch(value)
            outer = field.place[: len(field.place) - len(match[1])] if match and match[1] else ()
            target, at = self._file.data, list[str | int]()
            for part in (*outer, *match[2].split(".")) if match and deep < _DEEPEST else ("",):
                key = int(part) if isinstance(target, list) and str(part).isdigit() else part
                try:
                    target, at = target[key], [*at, key]
                except (KeyError, IndexError, TypeError):
                    why = f"is {short(value)}, which isn't a value of this file; write it out"
                    raise self._wrong(field.place, f"{_dotted(field.place)} {why}") from None
            value = self._plain(_RecipeField(tuple(at), target), target, deep + 1)  # It may refer to what is near it.
        if value == "???":
            raise self._wrong(field.place, f"{_dotted(field.place)} is '???', but must be given; write it out")
        if isinstance(value, dict) and "_target_" in value and {*value} <= _CALLED:
            name, numbers = str(value["_target_"]).rpartition(".")[2], value.get("_args_")
            value = _BACKENDS.get(str(numbers), name) if name == "AttnBackend" else name
        if isinstance(value, str) and field.name.endswith("dtype"):
            value = _DTYPES.get(value.removeprefix("torch."), value)
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def _argument_value(self, field: _RecipeField, argument: str) -> Any:
        """Returns the value of an argument that a field stands for."""
        value, name = field.value, _dotted(field.place)
        if _ARGUMENTS[argument].words == 0:
            if not isinstance(value, bool):
                raise self._wrong(field.place, f"{name} is {short(value)}, but must be true or false; mend it")
            return value
        if isinstance(value, bool):
            value = "hybrid" if value and argument == "fp8-format" else None if not value else str(value)
        if argument == "pipeline-model-parallel-layout" and isinstance(value, list):
            stages = [[_LAYERS.get(str(layer), "?") for layer in stage] for stage in value if isinstance(stage, list)]
            return "|".join(map("".join, stages))
        if isinstance(value, list):
            text = (" " if argument == "cp-comm-type" else ",").join(map(str, value))
            return f"[{text}]" if argument in ("moe-layer-freq", "window-attn-skip-freq") else text
        if argument == "normalization":
            return {"layernorm": "LayerNorm", "layernorm1p": "LayerNorm", "rmsnorm": "RMSNorm"}.get(str(value), value)
        return value_of(value) if isinstance(value, str) else value

    def _set(self, field: _RecipeField, argument: str, value: Any) -> None:
        """Sets an argument, over fields of a lower rank; those of one rank must say the same, but for flags, which are
        set where a field of any section sets them.
        """
        before, at = self._values.get(argument), self._places.get(argument)
        if before is not None and value != before and at is not None:
            if field.rank > _RecipeField(at, None).rank:
                self._aside.setdefault(_dotted(at[:-1]), []).append(f"{at[-1]} (set by {_dotted(field.place)})")
            elif isinstance(value, bool) and at[:-1] != field.place[:-1]:
                unset, setter = (at, field.place) if value else (field.place, at)
                self._aside.setdefault(_dotted(unset[:-1]), []).append(f"{unset[-1]} (set by {_dotted(setter)})")
                value, field = True, field._replace(place=setter)
            else:
                line, values = self._file.line_of(self._file.text, at), map(self._written, (field.place, at))
                shown, other = map(short, values)
                why = f"is {shown}, but {_dotted(at)} in line {line} is {other}; leave one out"
                raise self._wrong(field.place, f"{_dotted(field.place)} {why}")
        self._values[argument], self._places[argument] = value, field.place

    def _written(self, place: Place) -> Any:
        """Returns the value of a field as the file has it."""
        value: Any = self._file.data
        for part in place:
            value = value[part]
        return value

    def _value(self, name: str, default: Any = None) -> Any:
        """Returns the value of a field that is read apart."""
        return self._apart[name].value if name in self._apart else default

    def _says_over(self, argument: str) -> bool:
        """Returns whether an argument is from a section whose fields are set over those of others."""
        return _RecipeField(self._places.get(argument, ()), None).rank > 1

    def _must_be(self, name: str, what: str) -> ValueError:
        field = self._apart[name]
        return self._wrong(field.place, f"{_dotted(field.place)} is {short(field.value)}, but must be {what}")

    def _train(self, num_devices: int) -> None:
        """Sets the arguments on how the recipe trains that several fields say together."""
        values = self._values
        for name in ("precision", "mixed_precision"):
            precision = self._value(name)
            if precision in (None, True):
                continue
            scaled = SCALED_PRECISION.fullmatch(str(precision))
            if str(precision) not in PRECISIONS and not (scaled and scaled[2] in SCALINGS):
                raise self._must_be(name, f"one of {', '.join(PRECISIONS)}, bf16_with_{'|'.join(SCALINGS)}_mixed")
            flag = scaled[1] if scaled else PRECISIONS[str(precision)]
            for argument in ("bf16", "fp16"):
                self._set(self._apart[name], argument, argument == flag)
            for argument, value in SCALINGS[scaled[2]].items() if scaled else ():
                self._set(self._apart[name], argument, value)
        if {"precision", "mixed_precision"}.isdisjoint(self._apart) and {"bf16", "fp16"}.isdisjoint(self._places):
            name = "mixed_precision" if "mixed_precision" in self._sections else "trainer.precision"
            raise self._wrong(("model",), f"{name} is missing, but must be there to know the precision; add it")
        half = values.get("bf16") or values.get("fp16")
        mixed = not {"mixed_precision", "plugins"}.isdisjoint(self._apart)
        if mixed and not self._says_over("grad-reduce-in-bf16"):
            values["grad-reduce-in-bf16"] = False
        if self._value("grad_sync_dtype") in ("bf16", "fp16"):
            values["grad-reduce-in-bf16"] = True
        if values.get("grad-reduce-in-bf16") and not values.get("bf16"):
            values["grad-reduce-in-bf16"] = False  # Gradients are as wide as they are computed.
        if "comm_overlap" in self._apart or "callbacks" in self._apart:
            usual = {"overlap-grad-reduce": True, "overlap-param-gather": True, "no-overlap-p2p-communication": False}
            values |= {flag: value for flag, value in usual.items() if not self._says_over(flag)}
        interleaved = (values.get("num-virtual-stages-per-pipeline-rank") or 1) != 1
        values["no-overlap-p2p-communication"] = interleaved and values.get("no-overlap-p2p-communication", True)
        values.setdefault("moe-grouped-gemm", True)  # Classes and recipes have it.
        self._attend()
        self._share()
        by_nemo_1 = "precision" in self._apart and self._apart["precision"].place == ("trainer", "precision")
        if half and by_nemo_1 and not self._value("megatron_amp_O2"):
            self._notes.append(
                "model.megatron_amp_O2 isn't true: it is priced as if it was, with parameters in half precision and a "
                "copy in single precision, which are 2 bytes a parameter more"
            )
        nodes, devices = (self._counted(name) for name in ("num_nodes", "devices"))
        if devices is not None and devices * (nodes or 1) != num_devices:
            why = f"{nodes or 1} nodes of {devices} devices aren't {cluster_of(num_devices)}"
            raise self._wrong(self._apart["devices"].place, why)
        if not values.get("global-batch-size"):
            raise self._wrong_argument("global-batch-size", "--global-batch-size is missing, but must be there; add it")

    def _attend(self) -> None:
        """Sets the arguments on the kernels that NeMo 1 computes with."""
        engine, flash = self._value("transformer_engine"), self._values.get("use-flash-attn")
        if engine not in (None, True, False):
            raise self._must_be("transformer_engine", "true or false")
        if engine is False:
            if self._values.get("fp8-format"):
                raise self._must_be("transformer_engine", "true for products in 8 bits, which it computes")
            self._notes.append("model.transformer_engine false is priced as true, whose kernels take less time")
        if flash is False and engine is not True:
            self._values.setdefault("attention-backend", "unfused")
        elif flash is False:
            self._notes.append("use_flash_attention false is priced as true: transformer_engine fuses attention, too")

    def _counted(self, name: str) -> int | None:
        """Returns how many devices, or nodes, a field says; None: all that are there."""
        value = self._value(name)
        if isinstance(value, list):
            return len(value)
        if value in (None, -1, "-1", "auto"):
            return None
        count = value if isinstance(value, bool) else value_of(str(value))
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise self._must_be(name, "a whole number of at least 1, a list, -1 or auto")
        return count

    def _share(self) -> None:
        """Sets the arguments on what data-parallel devices share, and on the optimizer."""
        values, fsdp = self._values, self._value("fsdp")
        if fsdp not in (None, False):
            if str(fsdp) not in _FSDP:
                raise self._must_be("fsdp", " or ".join(_FSDP))
            values[_FSDP[str(fsdp)]] = True
        if self._value("ddp") not in (None, "megatron"):
            raise self._must_be("ddp", "megatron, or a section of fields")
        if values.get("use-megatron-fsdp"):
            values.setdefault("data-parallel-sharding-strategy", "no_shard")
        if values.get("optimizer") in _FUSED:
            if values["optimizer"] in _DISTRIBUTED:
                values["use-distributed-optimizer"] = True
                values.setdefault("overlap-grad-reduce", True)
            values["optimizer"] = "adam"

    def _size(self, given: Mapping[str, Any]) -> None:
        """Sets the arguments on the model's sizes that its class, or several fields together, say, over those of a
        model that is given where these don't say all.
        """
        name, values = self._value("model"), self._values
        base = None if name is None else model_arguments(str(name))
        if base is None and name is not None and not given:
            raise self._wrong(
                self._apart["model"].place, f"the sizes of {short(name)} aren't known; give --model, such as its "
                "config.json",
            )  # fmt: skip
        own = {name for name, value in values.items() if value is not None}
        sizes: dict[str, Any] = {**({} if "num-layers" in (base or {}) else given), **(base or {})}
        heads, width = sizes.get("num-attention-heads", 0), sizes.get("hidden-size", 0)
        if {"hidden-size", "num-attention-heads"} & own and sizes.get("kv-channels", 0) * heads == width > 0:
            del sizes["kv-channels"]
        function, gate = self._value("activation_func"), self._value("gated_linear_unit")
        if "activation" in self._apart:
            gate, function = _BY_NEMO.get(str(self._value("activation")), (None, "?"))
        was = next((key for key, flags in _ACTIVATIONS.items() if flags and flags[0] in sizes), (False, "gelu"))
        pair = was[0] if gate is None else bool(gate), was[1] if function is None else str(function)
        if pair not in _ACTIVATIONS:
            at = next(name for name in ("activation", "activation_func", "gated_linear_unit") if name in self._apart)
            raise self._must_be(at, "SiLU with a gate, or GELU or squared ReLU without one, to be planned")
        for flags in _ACTIVATIONS.values():
            sizes |= dict.fromkeys(flags, False)
        sizes |= dict.fromkeys(_ACTIVATIONS[pair], True)
        if "scale_factor" not in values and values.get("use-rope-scaling") and not sizes:
            sizes["rope-scaling-factor"] = 1.0
        self._values = values = sizes | {name: value for name, value in values.items() if name in own}
        if values.get("multi-latent-attention"):
            self._values = values = _LATENT | values
        if values.get("rope-scaling-factor", 1.0) != 1 and "rope-scaling-factor" in own:
            values["use-rope-scaling"] = True
        width = values.get("hidden-size")
        if isinstance(width, int):
            values.setdefault("ffn-hidden-size", 4 * width)
        if not values.get("num-experts") and values.get("moe-router-topk") == 2:
            values["moe-router-topk"] = None  # A class has it without experts, too.
        values["group-query-attention"] = values.get("num-query-groups") is not None

    def _translated(self, text: str) -> str:
        """Returns a sentence on Megatron's arguments in the recipe's fields."""

        def field(match: re.Match[str]) -> str:
            name = match[1]
            if name in _OWN:
                return match[0]
            key = _FIELDS.get(f"!{name}", _FIELDS.get(name, name.replace("-", "_")))
            shown = _dotted(self._places[name]) if name in self._places else key
            return f"{shown}: false" if f"!{name}" in _FIELDS else shown

        return _NAME.sub(field, text)

    def _wrong_argument(self, name: str, why: str) -> ValueError:
        by_class = name in self._values and "model" in self._apart
        place = self._places.get(name, self._apart["model"].place if by_class else ("model",))
        return self._wrong(place, self._translated(why))

    def _wrong(self, place: Place, why: str) -> ValueError:
        return ValueError(f"{self._file.path}, line {self._file.line_of(self._file.text, place)}: {why}")
