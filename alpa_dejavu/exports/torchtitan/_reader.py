"""A plan from torchtitan's configuration."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, final

from alpa_dejavu._util import units
from alpa_dejavu._util.json_file import read_text
from alpa_dejavu._util.near_names import near
from alpa_dejavu.exports._outline import Outline
from alpa_dejavu.exports._settings import settings_of, unknown_setting
from alpa_dejavu.exports._target import Foreign, short
from alpa_dejavu.exports.torchtitan._settings import JobSettings, read_settings
from alpa_dejavu.exports.torchtitan._writer import NAMES, module_names
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import NO_OFFLOAD, Offload
from alpa_dejavu.schedules import named_schedule
from alpa_dejavu.schedules.schedule_file import schedule_text

_FLAVORS: Final = {"8B": (4096, 32, 32, 14336), "70B": (8192, 80, 64, 28672), "405B": (16384, 126, 128, 53248)}
"""The hidden widths, blocks, heads and feed-forward widths of the flavors of llama3."""
_ADAM = ("Adam", "AdamW")
_LOADED = ("zb_h1", "v_half", "v_min")
"""Schedules that the CSV alone has."""
_SPLIT = re.compile(r"layers\.(\d{1,6})")
_MOST = 10**9
_EAGER_LOGIT_BYTES, _FUSED_LOGIT_BYTES = 14.0, 4.0
"""Of each logit: in half precision, and thrice in single precision (itself, its logarithm, its gradient), where nothing
is fused; and what the runtime "fsdp" is priced with."""


def read_torchtitan(path: pathlib.Path, num_devices: int, model: Transformer | None = None) -> Foreign:
    """Returns the plan that a configuration says. Of a model that is given the precision, and the sequence where it
    is in the file, are the configuration's.
    """
    configuration = _TorchtitanSettings(read_settings(path))
    sizes = configuration.sizes(model)
    outline = configuration.outline(num_devices, sizes.num_blocks)
    return Foreign(
        outline,
        sizes,
        tuple(configuration.ignored()),
        configuration.priced_by(),
        tuple(configuration.otherwise(outline, sizes)),
    )


@final
class _TorchtitanSettings:
    """The settings of a configuration, of which each is known."""

    def __init__(self, settings: JobSettings) -> None:
        self._settings = settings
        self._aside: dict[int, list[str]] = {}
        for section, values in settings.sections.items():
            self._check(section, values)
        name = self._get("optimizer", "name", "AdamW")
        if name not in _ADAM:
            raise self._wrong("optimizer", "name", f"optimizer.name is {name!r}, but must be Adam or AdamW; change it")

    def _check(self, section: str, values: Mapping[str, Any]) -> None:
        """Raises for a setting that isn't known, or is of what isn't planned."""
        sections = settings_of("torchtitan")
        settings = sections.get(section)
        if settings is None:
            why = f"[{section}] isn't known, so it may change what is planned{near(section, sections)}; leave it out"
            raise self._wrong(section, "", why)
        for key, value in values.items():
            setting = settings.get(key, settings.get("*"))
            if setting is None:
                raise self._wrong(section, key, unknown_setting(f"{section}.{key}", key, settings))
            if setting.use == "off" and value is not None and not _is_one_of(value, setting.allowed):
                why = f"{section}.{key} is {short(value)}, which isn't planned; make it {setting.allowed[0]!r}"
                raise self._wrong(section, key, why)
            if setting.use == "aside" or "*" in settings:
                line = self._settings.lines.get((section, key), 0)
                self._aside.setdefault(line, []).append(f"{section}.{key}")

    def ignored(self) -> Iterator[str]:
        """Yields the settings that say nothing of the plan, by line."""
        for line, names in self._aside.items():
            yield (f"line {line}: " if line else "") + ", ".join(names)

    def sizes(self, model: Transformer | None) -> Transformer:
        """Returns the model's sizes: those that are given, or those of the flavor."""
        precision = self._get("training", "mixed_precision_param", "bfloat16")
        if precision not in ("bfloat16", "float32"):
            key = "mixed_precision_param"
            why = f"training.{key} is {precision!r}, but must be 'bfloat16' or 'float32'; mend it"
            raise self._wrong("training", key, why)
        sequence = self._number("training", "seq_len", 2048)
        if model is not None:
            kept = sequence if "seq_len" in self._settings.sections.get("training", {}) else model.sequence
            return dataclasses.replace(model, precision=precision, sequence=kept)
        name, flavor = self._get("model", "name", "llama3"), self._get("model", "flavor", "")
        if name != "llama3" or not isinstance(flavor, str) or flavor not in _FLAVORS:
            why = f"the sizes of {name!r} {flavor!r} aren't known; give --model, such as its config.json"
            raise self._wrong("model", "flavor", why)
        hidden, blocks, heads, feed_forward = _FLAVORS[flavor]
        return Transformer(
            hidden, blocks, heads, 128256, sequence, kv_heads=8, feed_forward=feed_forward, precision=precision,
            rotary_base=500_000, rotary_scaling=8.0,
        )  # fmt: skip

    def priced_by(self) -> dict[str, str]:
        """Returns how it is priced, by the names of `PlanEstimator`'s arguments: without a compiler as "fsdp"."""
        return {} if self._compiled else {"runtime": "fsdp"}

    def otherwise(self, outline: Outline, sizes: Transformer) -> Iterator[str]:
        """Yields what is priced otherwise than it runs."""
        if not self._compiled:
            logits = outline.micro_batch * sizes.sequence * sizes.vocabulary / outline.tensor_parallel
            more = units.size((_EAGER_LOGIT_BYTES - _FUSED_LOGIT_BYTES) * logits)
            yield (
                "compile.enable isn't true, so it is priced as the runtime fsdp, whose loss is fused: one that isn't "
                f"takes up to {more} more on each device of the last stage"
            )

    @property
    def _compiled(self) -> bool:
        return self._flag("compile", "enable") or self._flag("training", "compile")

    def outline(self, num_devices: int, num_blocks: int) -> Outline:
        """Returns the plan on so many devices of a model of so many blocks."""
        along = self._number("parallelism", "tensor_parallel_degree", 1)
        ranks = self._number("parallelism", "pipeline_parallel_degree", 1)
        copies, shares = self._replicas(num_devices, along * ranks)
        across = copies * shares
        local = self._number("training", "batch_size", self._number("training", "local_batch_size", 8))
        batch = self._number("training", "global_batch_size", -1)
        batch = local * across if batch < 0 else batch
        blocks = self._blocks(num_blocks, ranks) if ranks > 1 else (num_blocks,)
        if ranks == 1:
            count, rest = divmod(batch, local * across)
            schedule = "1f1b"
        else:
            count, rest = divmod(local, self._number("parallelism", "pipeline_parallel_microbatch_size", 1))
            rest = rest or batch - local * across
            schedule = self._schedule(len(blocks) // ranks, len(blocks), count)
        if rest or not count:
            whole = "a multiple of" if ranks == 1 else "cut into whole micro-batches, and be all of"
            raise self._wrong(
                "training", "local_batch_size", f"training.global_batch_size is {batch}, but must be {whole} "
                f"{local * across}, training.local_batch_size on {across} replicas; mend one of them",
            )  # fmt: skip
        mode = self._mode()
        zero = 0 if shares == 1 else self._level(ranks)
        remat = (mode == "full",) * len(blocks)
        offload = Offload(1.0, 1.0, 1.0) if self._flag("training", "enable_cpu_offload") else NO_OFFLOAD
        return Outline(
            batch, count, schedule, across, along, blocks, remat, zero, offload, selective=mode == "selective"
        )

    def _replicas(self, num_devices: int, per_replica: int) -> tuple[int, int]:
        """How many copies of the parameters there are, and how many devices share each."""
        copies = self._number("parallelism", "data_parallel_replicate_degree", 1)
        key = "data_parallel_shard_degree"
        shares = self._number("parallelism", key, -1)
        if shares < 0:
            shares = num_devices // (per_replica * copies)
        if per_replica * copies * shares != num_devices or not shares:
            raise self._wrong(
                "parallelism", key, f"the degrees' product is {per_replica * copies * shares}, but must be the "
                f"{num_devices} devices of the cluster; give the cluster that it runs on, by --cluster and --hosts",
            )  # fmt: skip
        if copies > 1 and shares > 1:
            key = "data_parallel_replicate_degree"
            why = f"{key} is {copies} beside shares of {shares}, which isn't planned; make one of them 1"
            raise self._wrong("parallelism", key, why)
        return copies, shares

    def _level(self, ranks: int) -> int:
        key = "fsdp_reshard_after_forward"
        value = self._get("parallelism", key, "default")
        levels = {"always": 3, "never": 2, "default": 3 if ranks == 1 else 2}
        if not isinstance(value, str) or value not in levels:
            why = f"{key} is {short(value)}, but must be default, always or never; mend it"
            raise self._wrong("parallelism", key, why)
        return levels[value]

    def _blocks(self, num_blocks: int, ranks: int) -> tuple[int, ...]:
        """The blocks of each stage."""
        where = "parallelism"
        parts = self._get(where, "module_fqns_per_model_part")
        splits = self._get(where, "pipeline_parallel_split_points") or None
        key = "pipeline_parallel_split_points" if parts is None else "module_fqns_per_model_part"
        if parts is not None:
            blocks = _blocks_of_parts(parts, num_blocks)
        elif splits is not None:
            blocks = _blocks_of_splits(splits, num_blocks)
        else:
            key, blocks = "pipeline_parallel_layers_per_stage", self._spread(num_blocks, ranks)
        if not blocks or len(blocks) % ranks:
            raise self._wrong(
                where, key, f"{key} must be stages of all {num_blocks} blocks in their order, a multiple of {ranks}, "
                "with embeddings in the first one, and norm and head in the last; mend it",
            )  # fmt: skip
        return blocks

    def _spread(self, num_blocks: int, ranks: int) -> tuple[int, ...]:
        """The blocks of stages that torchtitan makes as equal as can be, where the ends count as blocks."""
        before, behind = (
            self._number("parallelism", f"pipeline_parallel_{end}_stage_less_layers", 1, least=0)
            for end in ("first", "last")
        )
        whole = num_blocks + before + behind
        per_stage = self._number("parallelism", "pipeline_parallel_layers_per_stage", 0)
        single = self._get("parallelism", "pipeline_parallel_schedule", "1F1B") in ("1F1B", "GPipe")
        stages = -(-whole // per_stage) if per_stage else ranks * (1 if single else 2)
        if stages > whole:
            return ()
        equal, more = divmod(whole, stages)
        blocks = [equal + (n < more) for n in range(stages)]
        blocks[0] -= before
        blocks[-1] -= behind
        return tuple(blocks) if min(blocks) >= 0 else ()

    def _schedule(self, chunks: int, stages: int, count: int) -> str:
        key = "pipeline_parallel_schedule"
        name, loaded = self._get("parallelism", key, "1F1B"), self._get("parallelism", f"{key}_csv")
        if loaded:
            return self._loaded(str(loaded), stages, count)
        names = {other: schedule for schedule, other in NAMES.items()}
        if not isinstance(name, str) or name not in names:
            why = f"{key} is {short(name)}, but must be one of {', '.join(names)}; change it"
            raise self._wrong("parallelism", key, why)
        wanted = {"Interleaved1F1B": range(2, 10**6), "ZBVZeroBubble": (2,), "DualPipeV": (2,)}.get(name, (1,))
        if chunks not in wanted:
            why = f"{key} is {name}, which can't have {chunks} stages on each rank; change the stages or the schedule"
            raise self._wrong("parallelism", key, why)
        return f"interleaved_{chunks}" if name == "Interleaved1F1B" and chunks > 2 else names[name]

    def _loaded(self, csv: str, stages: int, count: int) -> str:
        """The name of the schedule in a CSV, which is next to the configuration unless it says where."""
        text = read_text(self._settings.path.parent / csv, "it is the schedule that the configuration loads")
        for name in _LOADED if stages * count < len(text) else ():
            try:
                schedule = named_schedule(name, stages, count)
            except ValueError:
                continue
            if schedule_text(schedule) == text:
                return name
        raise self._wrong(
            "parallelism", "pipeline_parallel_schedule_csv", f"{csv} is none of the schedules {', '.join(_LOADED)} of "
            f"{stages} stages and {count} micro-batches; give one of these, or a schedule by its name",
        )  # fmt: skip

    def _mode(self) -> str:
        section, key = "activation_checkpoint", "selective_ac_option"
        mode = self._get(section, "mode", "selective")
        if mode not in ("none", "selective", "full"):
            raise self._wrong(section, "mode", f"{section}.mode is {short(mode)}, but must be none, selective or full")
        option = self._get(section, key)
        if mode == "selective" and option == "1":  # of every first block
            return "full"
        if mode == "selective" and option != "op":
            why = f"{section}.{key} is {short(option)}, but must be 'op' to be planned; write it out, or another mode"
            raise self._wrong(section, key, why)
        return str(mode)

    def _get(self, section: str, key: str, default: Any = None) -> Any:
        value = self._settings.sections.get(section, {}).get(key)
        return default if value is None else value

    def _flag(self, section: str, key: str) -> bool:
        value = self._get(section, key, False)
        if not isinstance(value, bool):
            raise self._wrong(section, key, f"{section}.{key} is {short(value)}, but must be true or false; mend it")
        return value

    def _number(self, section: str, key: str, default: int, least: int = 1) -> int:
        """A whole number, or the default; -1 where that is."""
        value = self._get(section, key, default)
        right = isinstance(value, int) and not isinstance(value, bool) and (least <= value < _MOST or value == default)
        if not right:
            why = f"{section}.{key} is {short(value)}, but must be a whole number of at least {least}; mend it"
            raise self._wrong(section, key, why)
        return int(value)

    def _wrong(self, section: str, key: str, why: str) -> ValueError:
        return self._settings.wrong(section, key, why)


def _is_one_of(value: Any, usual: tuple[Any, ...]) -> bool:
    return any(type(value) is type(other) and value == other for other in usual)


def _blocks_of_parts(parts: Any, num_blocks: int) -> tuple[int, ...]:
    """The blocks of each stage by the modules of its part; none where these aren't a whole model in its order."""
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        return ()
    blocks = tuple(sum(str(name).startswith("layers.") for name in part) for part in parts)
    heads = [["lm_head" if name == "output" else name for name in part] for part in parts]
    return blocks if sum(blocks) == num_blocks and heads == module_names(blocks) else ()


def _blocks_of_splits(splits: Any, num_blocks: int) -> tuple[int, ...]:
    names = splits.split(",") if isinstance(splits, str) else splits if isinstance(splits, list) else [""]
    matches = [_SPLIT.fullmatch(str(name).strip()) for name in names]
    ends = [0, *(int(match[1]) for match in matches if match is not None), num_blocks]
    blocks = tuple(b - a for a, b in itertools.pairwise(ends))
    return blocks if None not in matches and min(blocks[1:]) > 0 else ()
