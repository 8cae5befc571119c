"""A plan for inference: how a model is divided, and what both phases take."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Annotated, Any, Literal, final

from alpa_dejavu._util import units
from alpa_dejavu._util.dataclass_format import Needed, chosen, data_of, object_of, typed_dict_of
from alpa_dejavu._util.format_fields import (
    WHOLE,
    Bytes,
    Count,
    Positive,
    Seconds,
    SecondsAboveZero,
    Text,
    Words,
    listed,
    stated,
)
from alpa_dejavu._util.json_file import CheckedFile, read_checked, write_whole

OBJECTIVES = ("latency", "throughput")
"""What a plan for inference has the best of: the time to the first token, or tokens per second."""


@final
@dataclasses.dataclass(frozen=True)
class Phase:
    """The seconds of prefill, which end in the first token, or of decoding one more token of each sequence."""

    computing_s: Seconds  # operators, one micro-batch through all stages; weights and activations are read in them
    cache_s: Seconds  # reading the keys and values of all tokens before
    collectives_s: Seconds  # collectives among a stage's devices, without what hides behind computing
    transfers_s: Seconds
    waiting_s: Seconds  # what the phase takes longer because the slowest stage has other micro-batches to do
    hidden_s: Seconds  # collectives that hide behind computing; they aren't part of `seconds`
    weights_s: Seconds  # reading each weight from memory once, which `computing_s` can't go below
    interval_s: Annotated[tuple[Seconds, Seconds], stated("the two ends of an interval")]

    @property
    def seconds(self) -> float:
        """Returns the seconds of the phase: to the first token, or of each further token."""
        return self.computing_s + self.cache_s + self.collectives_s + self.transfers_s + self.waiting_s

    @property
    def memory_bound_s(self) -> float:
        """Returns the seconds that reading weights and cache from memory takes, which nothing goes below."""
        return self.weights_s + self.cache_s


@final
@dataclasses.dataclass(frozen=True)
class ServingMemory:
    """The bytes on the fullest device: weights, the cache of keys and values, and temporaries, and their limit."""

    weights_bytes: Bytes
    cache_bytes: Bytes
    temporary_bytes: Bytes
    limit_bytes: Bytes

    @property
    def peak_bytes(self) -> float:
        """Returns the bytes of all parts together."""
        return self.weights_bytes + self.cache_bytes + self.temporary_bytes


@final
@dataclasses.dataclass(frozen=True)
class ServingPlan:
    """A plan for inference on a cluster, with the seconds of both phases.

    Each of `replicas` alike groups of devices serves a batch of its own. It has `stages` stages, one after the other,
    of `tensor_parallel` devices each. A batch goes through the stages as one micro-batch for each stage, or as
    sequences of their own where it has too few.
    """

    model: Text  # and `cluster`, `latency`, `communication`, `calibration` (may be empty), `runtime`: names
    cluster: Text
    # What it was chosen for, one of `OBJECTIVES`.
    objective: Annotated[str, chosen(OBJECTIVES), stated('"latency" or "throughput"')]
    prompt_tokens: Count  # `prompt_tokens`, `output_tokens`: the mean lengths of prompts and outputs
    output_tokens: Count
    high_prompt_tokens: Count  # the length that 95 % of the prompts don't exceed
    reserved_tokens: Count  # the tokens of each sequence that the cache has room for: enough for 95 % of the requests
    tensor_parallel: Count
    stages: Count
    replicas: Count
    batch: Count  # `batch`, `prefill_batch`: sequences that a replica decodes together, prompts read at a time
    prefill_batch: Count
    # Who divides operators among the devices of a stage: "engine", the auto-sharding engine, as it does for a single
    # token; "even", as Megatron-LM does, which is taken where the engine copies weights or is slower.
    division: Annotated[str, chosen(("engine", "even")), stated('"engine" or "even"')]
    # Prefill: the time until all prompts of a batch have their first token.
    first_token: Annotated[Phase, stated("an object: the parts of prefill")]
    # Decoding: the time from each output token to the next.
    next_token: Annotated[Phase, stated("an object: the parts of decoding")]
    high_first_token_s: SecondsAboveZero  # `first_token`, with prompts of `high_prompt_tokens`
    tokens_per_s: Positive  # output tokens per second, of all replicas
    cache_bytes_per_token: Positive  # keys and values of one token in all layers, on all devices of a replica together
    memory: Annotated[ServingMemory, stated("an object: the bytes on the fullest device")]
    # latency_limit_s, first_token_limit_s: the limits on the time of an output token and of the first one, or None.
    latency_limit_s: Annotated[SecondsAboveZero | None, stated("seconds above 0, or null")]
    first_token_limit_s: Annotated[SecondsAboveZero | None, stated("seconds above 0, or null")]
    latency: Words
    communication: Words
    calibration: Words
    runtime: Words
    notes: Needed[Annotated[tuple[Words, ...], listed("a list of sentences")]] = ()

    @property
    def num_devices(self) -> int:
        """Returns how many devices the plan takes."""
        return self.tensor_parallel * self.stages * self.replicas


def phase_rows(plan: ServingPlan) -> list[list[str]]:
    """Returns a table of both phases: the heads of its columns, then a row of as many cells for each phase."""
    heads = "phase|time|90 % interval|computing|cache|collectives|transfers|waiting|hidden|by memory".split("|")
    rows = [heads]
    for name, phase in (("first token", plan.first_token), ("each next token", plan.next_token)):
        seconds = (
            phase.computing_s, phase.cache_s, phase.collectives_s, phase.transfers_s, phase.waiting_s, phase.hidden_s,
            phase.memory_bound_s,
        )  # fmt: skip
        interval = units.span(phase.interval_s, units.seconds)
        rows.append([name, units.seconds(phase.seconds), interval, *map(units.seconds, seconds)])
    return rows


def plan_facts(plan: ServingPlan) -> list[tuple[str, str]]:
    """Returns what else is said of a plan, such as its devices and their memory, as pairs of name and text."""
    memory = plan.memory
    replica = (
        f"{units.counted(plan.stages, 'stage')} of {units.counted(plan.tensor_parallel, 'device')}, "
        f"{units.counted(plan.replicas, 'replica')}, a batch of {plan.batch} on each"
    )
    divided = {"engine": "by the auto-sharding engine", "even": "evenly, as Megatron-LM does"}[plan.division]
    parts = f"weights {units.size(memory.weights_bytes)}, cache {units.size(memory.cache_bytes)}"
    return [
        ("devices", f"{replica} ({plan.num_devices} of {plan.cluster})"),
        *([("operators divided", divided)] if plan.tensor_parallel > 1 else []),
        (
            "prompts",
            f"{plan.prompt_tokens} tokens on average, 95 % have up to {plan.high_prompt_tokens}; computed "
            f"{plan.prefill_batch} together",
        ),
        ("first token", f"of 95 % of prompts within {units.seconds(plan.high_first_token_s)}"),
        ("throughput", f"{units.token_rate(plan.tokens_per_s)}, with {plan.output_tokens} tokens for each prompt"),
        (
            "memory of a device",
            f"{units.part(memory.peak_bytes, memory.limit_bytes, units.size)}: {parts}, temporaries "
            f"{units.size(memory.temporary_bytes)}",
        ),
        ("cache", f"{units.size(plan.cache_bytes_per_token)} a token, for {plan.reserved_tokens} tokens of a sequence"),
        *(("note", note) for note in plan.notes),
    ]


_VERSION = 1
_VERSION_KEY = Annotated[Literal[1], stated("1, the version of plans for inference that this release reads"), WHOLE]
_REMEDY = "`alpa-dejavu plan --inference` writes such files, and schemas/serving-1.json says what each key may be"


def serving_format() -> Any:
    """Returns the `TypedDict` of the data of a plan for inference: every key, and what it must be."""
    return typed_dict_of(ServingPlan, {"version": _VERSION_KEY})


def serving_text(plan: ServingPlan) -> str:
    """Returns the JSON text of a plan for inference."""
    return json.dumps({"version": _VERSION, **data_of(plan)}, indent=1) + "\n"


def write_serving_plan(plan: ServingPlan, path: str | os.PathLike[str]) -> None:
    """Writes a plan for inference to a file. Raises ValueError if the file can't be written; says why."""
    write_whole(pathlib.Path(path), serving_text(plan))


def read_serving_plan(path: str | os.PathLike[str]) -> ServingPlan:
    """Returns the plan for inference that a file has. Raises ValueError if it can't be read; says what is wrong."""
    file: CheckedFile[dict[str, Any]] = read_checked(pathlib.Path(path), serving_format(), _REMEDY)
    return object_of(ServingPlan, file.data)
