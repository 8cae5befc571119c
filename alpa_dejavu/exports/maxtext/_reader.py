"""A plan from MaxText's configuration: a YAML over its own defaults, or the script that runs one with settings."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, final

from alpa_dejavu._util import units
from alpa_dejavu._util.yaml_file import plain_value, read_checked_yaml
from alpa_dejavu.exports._command_line import PLAIN_NAMED, command_line_of, wrong_line
from alpa_dejavu.exports._outline import Outline
from alpa_dejavu.exports._settings import Configuration, checked_settings, setting_of, settings_of, short
from alpa_dejavu.exports._target import Foreign
from alpa_dejavu.exports.maxtext._writer import AXES, model_settings
from alpa_dejavu.layers.models import Transformer, transformer_size
from alpa_dejavu.planning.search.runtimes import RUNTIMES
from alpa_dejavu.problem import NO_OFFLOAD, Offload
from alpa_dejavu.sharding.transformers import execution

_REMEDY: Final = "give a YAML of MaxText's settings, or the script that runs it"
_USUAL: Final = {name: setting.default for name, setting in settings_of("maxtext")[""].items() if setting.use == "default"}
"""What MaxText's own base.yml has."""
_BASE, _OWN_BASE = "base_config", "base.yml"
_DEEPEST = 5
_TELLING: Final = ("model_name", "per_device_batch_size", "max_target_length", "base_emb_dim", "steps", "run_name")
"""Arguments by which a command that trains is known."""
_RULES: Final = ("logical_axis_rules", "mesh_axes", "data_sharding")
"""What says how axes divide tensors."""
_AXES: Final = tuple(axis for name in AXES for axis in ((name, "fsdp_transpose") if name == "fsdp" else (name,)))
_NAMES = re.compile(r"^(llama|gemma)(?=[23])")
_OTHER_NAMES: Final = {
    "deepseek2-16b": "deepseek-v2-lite", "deepseek2-236b": "deepseek-v2", "deepseek3-671b": "deepseek-v3",
    "mistral-7b": "mistral-7b-v0.3", "llama3-405b": "llama-3.1-405b",
}  # fmt: skip
"""The names of models by those that MaxText has, where these aren't alike."""
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
_BLOCKS: Final = ("llama2", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek", "gpt3")
"""Kinds of decoders whose sizes are read."""
_PRECISIONS: Final = {
    "": "", "fp8": "float8", "fp8_gpu": "float8", "te_fp8_delayedscaling": "float8", "te_fp8_currentscaling": "float8",
    "te_mxfp8": "mxfp8",
}  # fmt: skip
_OPTIMIZERS: Final = {"adamw": "adamw", "adam_pax": "adamw", "sgd": "sgd", "muon": "muon"}
_REMAT: Final = {
    "full": "layer", "none": "none", "minimal": "none", "minimal_with_context": "none", "minimal_flash": "none",
}  # fmt: skip
"""A compiler that keeps products alone, as `minimal` has it, is what a plan without recomputation is priced with."""
_SCALE, _TILES = "global_parameter_scale", "num_vocab_tiling"
_LAYERS, _REPEATS = "num_layers_per_pipeline_stage", "num_pipeline_repeats"
_ROUNDS, _ACCUMULATED, _SHARE = "num_pipeline_microbatches", "gradient_accumulation_steps", "per_device_batch_size"


def read_maxtext(path: pathlib.Path, num_devices: int, model: Transformer | None = None, hosts: int = 1) -> Foreign:
    """Returns the plan that a configuration says; a given model gets its precision, optimizer and tokens.

    `hosts` is how many hosts there are, which axes between them may divide.
    """
    config = _of_script(path) if path.suffix in (".sh", ".bash", ".txt", "") else _of_yaml(path)
    sizes = _sizes(config, model)
    outline = _outline(config, _axes(config, num_devices, hosts, sizes), sizes)
    attention = {"attention": "plain"} if config.get("attention") == "dot_product" else {}
    return Foreign(outline, sizes, config.ignored, attention, tuple(_otherwise(config, outline, sizes)))


@final
@dataclasses.dataclass(frozen=True)
class _Written:
    """A setting as it is written: its value, and where."""

    value: Any
    path: pathlib.Path
    line: int | None
    remedy: str = ""


def _of_yaml(path: pathlib.Path) -> Configuration:
    return _configured(path, _chain(path), False)


def _chain(path: pathlib.Path, depth: int = 0) -> dict[str, _Written]:
    """Returns the settings of a file and of those that it is based on, but for MaxText's own."""
    file = read_checked_yaml(path, dict[str, Any], _REMEDY)
    written = {name: _Written(value, path, file.line_of(file.text, (name,))) for name, value in file.data.items()}
    base = written.pop(_BASE, None)
    return {**({} if base is None else _based_on(base, depth)), **written}


def _based_on(base: _Written, depth: int = 0) -> dict[str, _Written]:
    """Returns the settings of the file that another is based on."""
    name = str(base.value)
    file = base.path.parent / name
    if file.is_file() and depth < _DEEPEST and file != base.path:
        return _chain(file, depth + 1)
    if pathlib.PurePosixPath(name).name != _OWN_BASE:
        raise wrong_line(
            base.path, base.line or 1, f"{short(name)} has further settings, but isn't there; put it beside this file, "
            f"and name it so, or write its settings into this one, over MaxText's own {_OWN_BASE}",
        )  # fmt: skip
    return {}


def _of_script(path: pathlib.Path) -> Configuration:
    """Returns the settings of the command that trains; those of the YAML that it names stand behind them."""
    command, known = command_line_of(path, _TELLING, PLAIN_NAMED, "MaxText"), settings_of("maxtext")[""]
    written: dict[str, _Written] = {}
    for argument in command.arguments:
        files = [value for value in argument.values if value.endswith((".yml", ".yaml"))]
        if not argument.name:
            for name in files[:1]:
                written = _based_on(_Written(name, path, argument.line)) | written
            continue
        setting = setting_of(known, argument.name)
        if argument.unknown is not None and (argument.unknown.flow or setting is None or setting.use != "aside"):
            shown = short(f"{argument.name}={argument.value}")
            raise wrong_line(path, argument.unknown.line, f"{shown} isn't known: {argument.unknown.reason}")
        written[argument.name] = _Written(plain_value(argument.value), path, argument.line)
    return _configured(path, written, True)


def _configured(path: pathlib.Path, written: Mapping[str, _Written], commanded: bool) -> Configuration:
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
    for name in _RULES:
        if name in values and written[name].path.name != _OWN_BASE:
            raise config.wrong(name, f"{name} is written, but must be MaxText's own to be planned; leave it out")
    known = _known(config)
    named = {} if known is None or not _is_written(known) else _shape(known)
    wins = commanded and config.flag("override_model_config") and bool(named)
    for name in _SHAPE & {*values} if known is not None and not wins else ():
        own = named.get(name, _USUAL.get(name))
        if not (values[name] == own and named) and written[name].path.name != _OWN_BASE:
            has = f"has {short(own)}" if named else "has its own"
            raise config.wrong(
                name, f"{name} is {short(values[name])}, but model_name {config.get('model_name')} {has}, which wins; leave "
                "one of them out",
            )  # fmt: skip
    ignored = config.ignored
    if path.name == _OWN_BASE:  # it has all of them
        ignored = (f"{len(ignored)} settings of {path}",)
    over = {**named, **values} if wins else {**values, **named}
    return dataclasses.replace(config, values={**_USUAL, **over}, ignored=ignored)


def _shape(model: Transformer) -> dict[str, Any]:
    """Returns the settings that say a model's sizes, but not how it is trained."""
    said = model_settings(dataclasses.replace(model, optimizer="adamw", precision="bfloat16"))
    return {name: value for name, value in said.items() if name not in ("dtype", "max_target_length")}


def _known(config: Configuration) -> Transformer | None:
    """Returns the sizes of a model by MaxText's name of it; None where it isn't named."""
    name = str(config.get("model_name", "default"))
    if name == "default":
        return None
    plain = name.replace("-Instruct", "").removesuffix("-base")
    sizes = transformer_size(_OTHER_NAMES.get(plain, _NAMES.sub(r"\1-", plain)))
    if sizes is None:
        why = f"the sizes of model_name {name} aren't known; give --model, such as its config.json, or write them out"
        raise config.wrong("model_name", why)
    vocabulary = next((number for start, number in _VOCABULARIES.items() if plain.startswith(start)), sizes.vocabulary)
    return dataclasses.replace(sizes, predicted=0, vocabulary=vocabulary)


def _is_written(model: Transformer) -> bool:
    return not RUNTIMES["maxtext"].why_not_written(model)


def _sizes(config: Configuration, model: Transformer | None) -> Transformer:
    """Returns the model's sizes: those given, those of its name, or those that are written."""
    kind = config.one_of("quantization", _PRECISIONS)
    if kind and config.get("dtype") != "bfloat16":
        raise config.must_be("dtype", "bfloat16 beside a quantization")
    training: dict[str, Any] = {
        "precision": _PRECISIONS[kind] or config.one_of("dtype", ("bfloat16", "float32")),
        "optimizer": _OPTIMIZERS[config.one_of("opt_type", _OPTIMIZERS)],
    }
    training |= {"sequence": config.number("max_target_length")} if model is None else {}
    known = model or _known(config)
    if model is None and (known is None or _is_written(known)):
        known = _written_sizes(config)
    assert known is not None, "it is written, or named"
    return dataclasses.replace(known, gather="", **training)


def _written_sizes(config: Configuration) -> Transformer:
    block = config.one_of("decoder_block", _BLOCKS)
    activations = config.get("mlp_activations")
    if activations not in (["silu", "linear"], ["gelu", "linear"], ["gelu"]):
        raise config.must_be("mlp_activations", "silu and linear, gelu and linear, or gelu to be planned")
    latent = config.one_of("attention_type", ("global", "mla")) == "mla"
    if latent != (block == "deepseek"):
        raise config.must_be("attention_type", "mla with decoder_block deepseek, else global, to be planned")
    wider, more, deeper = _scales(config)
    experts, plain = config.number("num_experts"), block == "gpt3"
    wide = narrow = config.number("base_mlp_dim") * more
    if experts > 1 and config.get("base_moe_mlp_dim") != -1:
        narrow = config.number("base_moe_mlp_dim") * more
    fields: dict[str, Any] = {"feed_forward": narrow}
    if experts > 1:
        dense = config.number("first_num_dense_layers", 0)
        fields |= {
            "num_experts": experts, "experts_per_token": config.number("num_experts_per_tok"), "dense_blocks": dense,
            "dense_feed_forward": wide if dense else 0, "router_bias": config.flag("routed_bias"),
            "shared_feed_forward": config.number("shared_experts", 0) * narrow, "capacity": _capacity(config),
        }  # fmt: skip
    if latent:
        keys = {"head_size": "qk_nope_head_dim", "rotary_size": "qk_rope_head_dim", "value_size": "v_head_dim",
                "latent_rank": "kv_lora_rank"}  # fmt: skip
        fields |= {field: config.number(key) for field, key in keys.items()}
        fields |= {"query_rank": config.number("q_lora_rank", 0, least=0)}
    heads, biased = config.number("base_num_query_heads") * more, config.flag("attention_bias")
    fields |= {"rotary": False, "rms_norm": False} if plain else _rotary(config)
    positions, tokens = config.get("trainable_position_size"), config.number("max_target_length")
    return Transformer(
        config.number("base_emb_dim") * wider, config.number("base_num_decoder_layers") * deeper, heads,
        config.number("vocab_size"), tokens, kv_heads=heads if latent else config.number("base_num_kv_heads") * more,
        gated=len(activations) > 1,
        **{"head_size": config.number("head_dim"), **fields},
        activation=activations[0], tied=config.flag("logits_via_embedding"), qk_norm=config.flag("use_qk_norm"),
        biases="all" if plain else "none" if not biased else "qkv" if block == "qwen2" else "attention",
        predicted=config.number("mtp_num_layers", 0, least=0),
        positions=positions if plain and positions not in (-1, tokens) else 0,
    )  # fmt: skip


def _scales(config: Configuration) -> tuple[int, int, int]:
    """Returns how many times as wide are hidden states, as many are heads and feed-forward sizes, and blocks."""
    scale = config.number(_SCALE)
    third, rest = divmod(scale.bit_length() - 1, 3)
    if scale.bit_count() != 1:
        raise config.must_be(_SCALE, "a power of two")
    return 2 ** (third + (rest > 1)), 2 ** (third + (rest > 0)), 2**third


def _capacity(config: Configuration) -> float:
    """Returns for how many tokens beyond an even share an expert has a place; 0: for all that come."""
    factor = config.get("capacity_factor")
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        raise config.must_be("capacity_factor", "a number")
    if config.flag("sparse_matmul"):
        return 0.0
    if factor <= 0:
        raise config.must_be("sparse_matmul", "true, or beside a capacity_factor: all experts compute all tokens else")
    return float(factor)


def _rotary(config: Configuration) -> dict[str, Any]:
    """The fields that say how positions rotate heads."""
    kind, base = config.one_of("rope_type", ("default", "llama3.1", "yarn")), config.get("rope_max_timescale")
    if isinstance(base, bool) or not isinstance(base, int | float) or base < 1 or base != int(base):
        raise config.must_be("rope_max_timescale", "a whole number")
    fields: dict[str, Any] = {"rotary_base": int(base)}
    if kind == "yarn":
        factor = config.get("rope_factor")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or factor < 1:
            raise config.must_be("rope_factor", "a number of at least 1")
        return fields | {"rotary_scaling": float(factor), "rotary_scaling_kind": "yarn"}
    scaled = kind == "llama3.1" and config.flag("rope_use_scale")
    return fields | ({"rotary_scaling": 8.0, "rotary_scaling_kind": "llama3"} if scaled else {})


def _axes(config: Configuration, num_devices: int, hosts: int, sizes: Transformer) -> Mapping[str, int]:
    """Returns the degree of each axis, over hosts and within them."""
    between = config.number("num_slices") if config.get("num_slices") != -1 else hosts
    nets: dict[str, dict[str, int]] = {}
    for net, whole in (("dcn", between), ("ici", 0)):
        names = {axis: f"{net}_{axis}_parallelism" for axis in _AXES}
        degrees = {axis: config.number(name) if config.get(name) != -1 else -1 for axis, name in names.items()}
        left = [axis for axis, degree in degrees.items() if degree == -1]
        if len(left) > 1:
            raise config.must_be(names[left[1]], f"a number: {names[left[0]]} is what is left, too")
        whole = whole or num_devices // math.prod(nets["dcn"].values())
        if left:
            degrees[left[0]] = max(whole // math.prod(max(degree, 1) for degree in degrees.values()), 1)
        nets[net] = degrees
    axes = {axis: nets["ici"][axis] * nets["dcn"][axis] for axis in _AXES}
    if math.prod(axes.values()) != num_devices:
        shown = " times ".join(f"{axis} {degree}" for axis, degree in axes.items() if degree > 1) or "1"
        widest = max(_AXES, key=lambda axis: axes[axis])
        own = next((f"{net}_{widest}_parallelism" for net in nets if nets[net][widest] > 1), "")
        raise config.wrong(
            own, f"the degrees are {shown}, but their product must be the {num_devices} devices of the cluster; give the "
            "cluster that it runs on, by --cluster and --hosts, or mend them",
        )  # fmt: skip
    outer = ""
    for axis in _AXES:
        if outer and nets["ici"][axis] > 1:
            raise config.wrong(
                f"dcn_{outer}_parallelism", f"dcn_{outer}_parallelism is {nets['dcn'][outer]} beside "
                f"ici_{axis}_parallelism {nets['ici'][axis]}, but must be 1: devices of an axis are planned next to each "
                f"other in the order {', '.join(_AXES)}; change both",
            )  # fmt: skip
        outer = axis if nets["dcn"][axis] > 1 else outer
    shared = axes["fsdp"] * axes["fsdp_transpose"] * (axes["expert"] if sizes.num_experts < 2 else 1)
    return {**axes, "fsdp": shared, "expert": axes["expert"] if sizes.num_experts > 1 else 1}


def _outline(config: Configuration, axes: Mapping[str, int], sizes: Transformer) -> Outline:
    """Returns the plan on axes of such degrees."""
    stages, context = axes["pipeline"], axes["context"]
    shared = axes["fsdp"] * context * axes["expert"]
    across, share = axes["data"] * shared, config.get(_SHARE)
    if isinstance(share, bool) or not isinstance(share, int | float) or share <= 0:
        raise config.must_be(_SHARE, "a number above 0")
    passed, rounds = share * across * axes["tensor"] * stages, config.number(_ACCUMULATED)
    count, blocks = rounds, (sizes.num_blocks,)
    if stages > 1:
        count = stages if config.get(_ROUNDS) == -1 else config.number(_ROUNDS)
        if rounds > 1:
            raise config.must_be(_ACCUMULATED, f"1 in a pipeline, to be planned; raise {_ROUNDS} instead")
        blocks = _blocks(config, stages, sizes.num_blocks)
    batch = round(passed * rounds)
    if batch != passed * rounds or batch % (count * (across // context)):
        parts = f"{count} micro-batches on {across // context} replicas"
        raise config.wrong(
            _SHARE, f"{_SHARE} is {share}, which makes a batch of {passed * rounds:g}, but that must be a multiple of "
            f"{count * (across // context)}: {parts}; change one of them",
        )  # fmt: skip
    if shared > 1 and config.flag("shard_optimizer_over_data"):
        raise config.must_be("shard_optimizer_over_data", "false where axes share parameters")
    zero = 3 if shared > 1 else 2 if across > 1 and config.flag("shard_optimizer_over_data") else 0
    remat = _REMAT[config.one_of("remat_policy", _REMAT)]
    offload = Offload(1.0) if config.flag("optimizer_memory_host_offload") else NO_OFFLOAD
    return Outline(
        batch, count, "1f1b" if stages == 1 else "gpipe", across, axes["tensor"], blocks, (remat,) * stages, zero,
        offload, context, axes["expert"], sharded=shared if zero == 3 and shared < across else 0,
    )  # fmt: skip


def _blocks(config: Configuration, stages: int, num_blocks: int) -> tuple[int, ...]:
    """Returns the blocks of each stage, of which a device has one."""
    each, (repeats, rest) = config.number(_LAYERS), divmod(num_blocks, stages * config.number(_LAYERS))
    said = config.get(_REPEATS)
    if rest or said not in (-1, repeats):
        said = repeats if said == -1 else said
        raise config.wrong(
            _LAYERS, f"{stages} stages times {_LAYERS} {each} times {_REPEATS} {said} must be the {num_blocks} blocks of "
            "the model; mend one of them",
        )  # fmt: skip
    if repeats > 1:
        remedy = f"make {_LAYERS} {num_blocks // stages}" if num_blocks % stages == 0 else "change the stages"
        raise config.wrong(_LAYERS, f"{_REPEATS} comes to {repeats}, but must be 1 to be planned; {remedy}")
    return (each,) * stages


def _otherwise(config: Configuration, outline: Outline, sizes: Transformer) -> Iterator[str]:
    """Yields what of a configuration is priced otherwise."""
    if config.get("remat_policy") == "minimal":
        width = sizes.num_heads * (sizes.value_size or sizes.head_size) // outline.tensor_parallel
        tokens = outline.micro_batch * sizes.sequence // outline.context_parallel
        held = outline.num_micro_batches if outline.pipeline > 1 else 1
        kept = units.size(2 * width * tokens * max(outline.blocks) * held)
        yield f"remat_policy minimal is priced as minimal_with_context: attention isn't computed again, and {kept} kept"
    tiles = config.number(_TILES)
    if tiles > 1:
        logits = outline.micro_batch * sizes.sequence * sizes.vocabulary / outline.tensor_parallel
        kept = units.size(execution("maxtext").logit_bytes * logits * (1 - 1 / tiles))
        yield f"{_TILES} {tiles} is priced as 1, which keeps up to {kept} more on each device of the last stage"
    ring = config.one_of("context_parallel_strategy", ("all_gather", "ring")) == "ring"
    if ring and outline.context_parallel > 1:
        yield "context_parallel_strategy ring is priced as all_gather, which sends as much, and less hidden"
    rules = [name for name in _RULES if name in config]
    if rules:
        yield f"{' and '.join(rules)} of {_OWN_BASE} are taken to be MaxText's own"
